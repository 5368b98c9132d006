// Real processes under mpirun; mpi_probe.cc is one of them.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace rollcast {
namespace {

struct Outcome {
  int status = -1;
  std::string output;  // of all ranks and mpirun
  bool Has(const std::string& text) const { return output.find(text) != std::string::npos; }
};

Outcome RunProbe(int ranks, const std::string& name, const std::string& options = "") {
  const std::string command = std::string("timeout 120 ") + ROLLCAST_MPIRUN +
                              " --allow-run-as-root --oversubscribe " + options + " -np " +
                              std::to_string(ranks) + " " + ROLLCAST_MPI_PROBE + " " + name +
                              " 2>&1 < /dev/null";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.output.append(buffer.data(), n);
  const int raw = pclose(pipe);
  outcome.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  return outcome;
}

TEST(Mpi, MessagesComeInOrderAndBulkDataThroughTheChain) {
  const Outcome outcome = RunProbe(3, "transfer");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_TRUE(outcome.Has("GB/s a rank")) << outcome.output;
}

TEST(Mpi, AGivenUpTransferNeverReachesTheNext) {
  const Outcome outcome = RunProbe(2, "stale");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
}

TEST(Mpi, PiecesOfAnotherSizeAreErrors) {
  const Outcome outcome = RunProbe(2, "sizes");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_TRUE(outcome.Has("a piece from rank 0 has 500 bytes, expected 1000")) << outcome.output;
  EXPECT_TRUE(outcome.Has("has more than the 500 bytes expected")) << outcome.output;
}

TEST(Mpi, RolesAreAgreedAndAMismatchIsToldByEveryRank) {
  const Outcome agreed = RunProbe(3, "roles");
  EXPECT_EQ(agreed.status, 0) << agreed.output;
  EXPECT_TRUE(agreed.Has("rank 2: trainer 0, 2 workers")) << agreed.output;
  const Outcome mismatch = RunProbe(3, "mismatch");
  EXPECT_EQ(mismatch.status, 2) << mismatch.output;
  EXPECT_TRUE(mismatch.Has("a.b is 7 on ranks 0, 2, 8 on rank 1")) << mismatch.output;
}

TEST(Mpi, TwoUpdatesReachEveryRank) {
  const Outcome outcome = RunProbe(3, "update");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_TRUE(outcome.Has("second: committed 1 version 2 ranks 2")) << outcome.output;
  EXPECT_TRUE(outcome.Has("rank 1 has version 2")) << outcome.output;
  EXPECT_TRUE(outcome.Has("rank 2 has version 2")) << outcome.output;
}

TEST(Mpi, AKilledRankIsNamedAndTheOthersGoOnWithoutIt) {
  const Outcome outcome = RunProbe(4, "killed", "--enable-recovery");
  EXPECT_TRUE(outcome.Has("first: committed 0 version 0 error rank 3 does not answer"))
      << outcome.output;
  EXPECT_TRUE(outcome.Has("second: committed 1 version 1 ranks 2 error")) << outcome.output;
  EXPECT_TRUE(outcome.Has("rank 1 has version 1")) << outcome.output;
  EXPECT_TRUE(outcome.Has("rank 2 has version 1")) << outcome.output;
}

TEST(Mpi, AnExceptionOnOneRankEndsTheWholeJob) {
  const Outcome outcome = RunProbe(3, "throw");
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.status, 124) << "the job hung";
  EXPECT_TRUE(outcome.Has("failed: rank 1 breaks")) << outcome.output;
}

}  // namespace
}  // namespace rollcast
