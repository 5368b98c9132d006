#include "rollout/writer_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "rollout/trajectory_file.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using testing::ExpectError;

TrajectoryFileInfo Overwrite(const std::string& config) {
  TrajectoryFileInfo info;
  info.config = config;
  info.overwrite = true;
  return info;
}

TEST(WriterLock, ASecondWriterIsRefusedAndTheFirstGoesOn) {
  const testing::TemporaryDir dir;
  const auto path = dir.path() / "out.h5";
  std::optional<TrajectoryFile> first;
  first.emplace(path, Overwrite("first"));
  EXPECT_TRUE(first->locked());
  ExpectError([&] { TrajectoryFile(path, Overwrite("second")); },
              {path.string() + ": another job is writing it"});
  first->AppendUpdate({});
  // The library that readers use locks the file, too; the writer must neither keep it out nor be
  // disturbed.
  const TrajectoryReader reader(path);
  EXPECT_EQ(reader.info().config, "first");
  EXPECT_EQ(reader.ReadUpdates().size(), 1u);
  first->AppendUpdate({});
  first->Close(RunEnd::Completed());
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    EXPECT_EQ(entry.path(), path) << "something is left over";
}

TEST(WriterLock, AReaderDoesNotKeepAFileFromBeingReplaced) {
  const testing::TemporaryDir dir;
  const auto path = dir.path() / "out.h5";
  TrajectoryFile(path, Overwrite("first")).Close(RunEnd::Completed());
  const TrajectoryReader reader(path);
  TrajectoryFile(path, Overwrite("second")).Close(RunEnd::Completed());
  EXPECT_EQ(TrajectoryReader(path).info().config, "second");
  EXPECT_EQ(reader.info().config, "first");
}

TEST(WriterLock, EndsWithItsProcess) {
  const testing::TemporaryDir dir;
  const auto path = dir.path() / "out.h5";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    TrajectoryFile file(path, Overwrite("killed"));
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
    _exit(1);
  }
  close(ready[1]);
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  ExpectError([&] { TrajectoryFile(path, Overwrite("early")); }, {"another job is writing it"});
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  TrajectoryFile(path, Overwrite("late")).Close(RunEnd::Completed());
  EXPECT_EQ(TrajectoryReader(path).info().config, "late");
}

TEST(WriterLock, NoFileIsNothingToReplace) {
  const testing::TemporaryDir dir;
  EXPECT_FALSE(FileToReplace(dir.path() / "none", kHdf5Output).exists());
}

}  // namespace
}  // namespace rollcast
