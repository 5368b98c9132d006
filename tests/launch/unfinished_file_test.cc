#include "launch/unfinished_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "tests/testing/expect_error.h"
#include "tests/testing/run_command.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

namespace fs = std::filesystem;

class UnfinishedFileTest : public ::testing::Test {
 protected:
  size_t Files() const {
    return std::distance(fs::directory_iterator(dir_.path()), fs::directory_iterator());
  }
  static void Put(const fs::path& path) { std::ofstream(path) << "rows"; }

  const testing::TemporaryDir dir_;
  const fs::path path_ = dir_.path() / "out";
};

TEST_F(UnfinishedFileTest, AppearsOnCommitAlone) {
  {
    const UnfinishedFile file(path_);
    Put(file.written());
    EXPECT_EQ(Files(), 1u);
  }
  EXPECT_EQ(Files(), 0u);
  UnfinishedFile file(path_);
  Put(file.written());
  EXPECT_FALSE(fs::exists(path_));
  file.Commit();
  EXPECT_TRUE(fs::exists(path_));
  EXPECT_EQ(Files(), 1u);
  testing::ExpectError([&] { file.Commit(); }, {path_.string() + ": cannot be written: "});
}

TEST_F(UnfinishedFileTest, ASignalRemovesItAndEndsTheProcess) {
  for (const int signal : {SIGHUP, SIGINT, SIGPIPE, SIGTERM}) {
    EXPECT_EXIT(
        {
          std::signal(signal, SIG_DFL);
          const UnfinishedFile file(path_);
          Put(file.written());
          std::raise(signal);
        },
        ::testing::KilledBySignal(signal), "");
    EXPECT_EQ(Files(), 0u);
  }
}

TEST_F(UnfinishedFileTest, SignalsDoWhatTheyDidBeforeAndAfter) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  const auto before_term = std::signal(SIGTERM, SIG_DFL);
  {
    const UnfinishedFile file(path_);
    Put(file.written());
    std::raise(SIGHUP);  // as under nohup
    EXPECT_EQ(Files(), 1u);
    EXPECT_NE(std::signal(SIGTERM, SIG_IGN), SIG_DFL);
  }
  EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN);
  EXPECT_EQ(std::signal(SIGTERM, before_term), SIG_DFL);
}

// The input is a pipe that nobody writes to: reading never ends.
TEST_F(UnfinishedFileTest, TokenizeHearsASignalWhileItReads) {
  const std::string data = ROLLCAST_TEST_DATA;
  const testing::TemporaryDir inputs;
  const std::string input = inputs.path() / "rows";
  ASSERT_EQ(mkfifo(input.c_str(), 0600), 0);
  const int writer = open(input.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(writer, 0);
  bool signalled = false;
  const testing::CommandResult r =
      testing::RunCommand({ROLLCAST_BINARY, "tokenize", "--tokenizer", data + "/tokenizers/gpt2",
                           "--input", input, "--output", path_.string()},
                          std::chrono::seconds(60), [&](const std::string&, int pid) {
                            if (signalled || Files() == 0) return;
                            signalled = true;
                            kill(pid, SIGTERM);
                          });
  close(writer);
  EXPECT_FALSE(r.timed_out);
  EXPECT_EQ(r.status, 128 + SIGTERM) << r.out;
  EXPECT_EQ(Files(), 0u);
}

}  // namespace
}  // namespace rollcast
