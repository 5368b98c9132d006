// The Python package beside real ranks, with numpy alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "rollout/trajectory_file.h"
#include "tests/testing/mpi_job.h"
#include "tests/testing/trainer_library_test.h"

namespace rollcast {
namespace {

using namespace std::chrono_literals;
using testing::MpiJob;
using testing::Quoted;
using testing::TrainerLibraryTest;

class PythonTest : public TrainerLibraryTest {
 protected:
  std::string Python(const std::string& script, const std::string& arguments) const {
    return "env PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=" + Quoted(ROLLCAST_PYTHON_PACKAGE) +
           " ROLLCAST_LIBRARY=" + Quoted(ROLLCAST_TRAINER_LIBRARY) + " " + Quoted(ROLLCAST_PYTHON) +
           " " + Quoted(std::string(ROLLCAST_PYTHON_TESTS) + "/" + script) + " " + arguments;
  }
  std::string Case(const std::string& name) const {
    return Python("trainer_job.py", name + " " + Config() + " " + Quoted(model().string()));
  }
};

TEST_F(PythonTest, KnowsNamesAndTheLibrary) {
  MpiJob job("exec " + Python("names.py", ""), folder_);
  EXPECT_EQ(job.Wait(60s), 0) << job.err();
  EXPECT_NE(job.out().find("4 passed"), std::string::npos) << job.out();
}

class PythonJobTest : public PythonTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(PythonJobTest, EndsWell) {
  MpiJob job(Job(Case(GetParam()), 2, "", WithOutput()), folder_);
  ASSERT_EQ(job.Wait(240s), 0) << job.err() << job.out();
  EXPECT_NE(job.out().find("the script has ended well"), std::string::npos) << job.out();
  EXPECT_TRUE(TrajectoryReader(Output()).closed());
}

std::string CaseName(const ::testing::TestParamInfo<const char*>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Cases, PythonJobTest,
                         ::testing::Values("rollout", "submit", "publish", "arguments", "goes_on",
                                           "own_mpi"),
                         CaseName);

TEST_F(PythonTest, AnExceptionInTheScriptEndsTheJobWithItsText) {
  MpiJob job(Job(Case("fails"), 2, "", WithOutput()), folder_);
  EXPECT_GT(job.Wait(60s), 0);
  const std::string err = job.err();
  EXPECT_NE(err.find("Traceback"), std::string::npos) << err;
  EXPECT_NE(err.find("rank 1] error: the trainer (rank 0) has failed: ValueError: the loss is not "
                     "finite:\\n  loss: nan\n"),
            std::string::npos)
      << err;
  const TrajectoryReader reader(Output());
  EXPECT_EQ(reader.rows(), 3);
  EXPECT_EQ(
      reader.end(),
      "failed: the trainer (rank 0) has failed: ValueError: the loss is not finite:\\n  loss: "
      "nan");
}

TEST_F(PythonTest, AScriptThatHasMpiForOneThreadIsToldSo) {
  MpiJob job(Job(Case("one_thread"), 1, "", WithOutput()), folder_);
  EXPECT_GT(job.Wait(60s), 0);
  EXPECT_NE(job.err().find("it must ask for MPI_THREAD_MULTIPLE"), std::string::npos) << job.err();
}

TEST_F(PythonTest, CtrlCIsHeardWhileACallWaits) {
  MpiJob job(Job(Case("interrupted"), 1, "", WithOutput()), folder_);
  EXPECT_GT(job.Wait(60s), 0);
  const std::string err = job.err();
  EXPECT_NE(err.find("rank 1] error: the trainer (rank 0) has failed: KeyboardInterrupt"),
            std::string::npos)
      << err;
}

TEST_F(PythonTest, AKilledRankIsAnExceptionInTheScript) {
  // With --enable-recovery mpirun leaves it to the others to find out.
  MpiJob job(Job(Case("killed"), 1, "--enable-recovery", WithOutput()), folder_);
  ASSERT_TRUE(job.WaitFor([&] { return std::filesystem::exists(model() / "started"); }, 60s))
      << job.err();
  ASSERT_TRUE(job.KillRank(1));
  ASSERT_NE(job.Wait(60s), -1);  // mpirun's status says nothing then
  EXPECT_NE(job.out().find("seen by the script: the coordinator (rank 1) is lost"),
            std::string::npos)
      << job.out() << job.err();
}

TEST_F(PythonTest, AScriptThatForgetsItsClientFails) {
  MpiJob job(Job(Case("forgotten"), 1), folder_);
  EXPECT_GT(job.Wait(60s), 0);
  EXPECT_NE(
      job.err().find(
          "error: the trainer (rank 0) has failed: its script has ended without finishing the job"),
      std::string::npos)
      << job.err();
}

TEST_F(PythonTest, OtherSettingsThanTheRanksAreAnException) {
  MpiJob job(Job(Case("submit"), 1, "", WithOutput() + " --set sampling.top_k=5"), folder_);
  EXPECT_GT(job.Wait(60s), 0);
  const std::string err = job.err();
  EXPECT_NE(err.find("RollcastError: "), std::string::npos) << err;
  EXPECT_NE(err.find("configuration"), std::string::npos) << err;
}

}  // namespace
}  // namespace rollcast
