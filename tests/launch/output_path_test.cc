#include "launch/output_path.h"

#include <gtest/gtest.h>

#include <fstream>

#include "kernels/check.h"
#include "rollout/trajectory_file.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

TEST(PrepareOutput, MakesMissingFoldersAndNothingElse) {
  const testing::TemporaryDir dir;
  PrepareOutput(dir.path() / "a" / "b" / "out.h5", false);
  EXPECT_TRUE(std::filesystem::is_directory(dir.path() / "a" / "b"));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "a" / "b" / "out.h5"));
}

TEST(PrepareOutput, AnExistingFileNeedsOverwrite) {
  const testing::TemporaryDir dir;
  std::ofstream(dir.path() / "out.h5") << "x";
  EXPECT_THROW(PrepareOutput(dir.path() / "out.h5", false), Error);
  EXPECT_NO_THROW(PrepareOutput(dir.path() / "out.h5", true));
}

TEST(PrepareOutput, RefusesAFileThatAnotherJobIsWriting) {
  const testing::TemporaryDir dir;
  const auto path = dir.path() / "out.h5";
  TrajectoryFile file(path, {});
  testing::ExpectError([&] { PrepareOutput(path, true); }, {"out.h5: another job is writing it"});
  file.Close(RunEnd::Completed());
  EXPECT_NO_THROW(PrepareOutput(path, true));
}

TEST(PrepareOutput, RefusesTheInputWhateverItsName) {
  const testing::TemporaryDir dir;
  std::ofstream(dir.path() / "p.jsonl") << "x";
  EXPECT_THROW(PrepareOutput(dir.path() / "." / "p.jsonl", true, dir.path() / "p.jsonl"), Error);
  EXPECT_NO_THROW(PrepareOutput(dir.path() / "out.h5", true, dir.path() / "p.jsonl"));
}

TEST(PrepareOutput, RefusesAFolderAndAFileAsFolder) {
  const testing::TemporaryDir dir;
  EXPECT_THROW(PrepareOutput(dir.path(), true), Error);
  testing::ExpectError([&] { PrepareOutput(dir.path() / "new" / "", true); }, {"is a folder"});
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "new"));
  std::ofstream(dir.path() / "file") << "x";
  EXPECT_THROW(PrepareOutput(dir.path() / "file" / "out.h5", true), Error);
}

}  // namespace
}  // namespace rollcast
