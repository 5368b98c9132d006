#include "launch/output_path.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

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
  for (const char* content : {"", "\x89HDF\r\n\x1a\nrest"}) {
    std::ofstream(dir.path() / "out.h5") << content;
    testing::ExpectError([&] { PrepareOutput(dir.path() / "out.h5", false); },
                         {"exists already", "--overwrite"});
    EXPECT_NO_THROW(PrepareOutput(dir.path() / "out.h5", true));
  }
}

TEST(PrepareOutput, OverwriteReplacesOnlyAnOutputOfItsKind) {
  const testing::TemporaryDir dir;
  const auto readme = dir.path() / "README.md", old = dir.path() / "old.h5";
  std::ofstream(readme) << "# text that is no HDF5";
  std::ofstream(old) << "\x89HDF\r\n\x1a\nrest";
  testing::ExpectError([&] { PrepareOutput(readme, true); }, {"README.md: is not an HDF5 file"});
  TrajectoryFileInfo info;
  info.overwrite = true;
  testing::ExpectError([&] { TrajectoryFile(readme, info); }, {"README.md: is not an HDF5 file"});
  EXPECT_EQ(std::filesystem::file_size(readme), 22u);
  EXPECT_THROW(PrepareOutput(old, true, {}, {"a list", "{"}), Error);
  EXPECT_NO_THROW(PrepareOutput(readme, true, {}, {"a text", "# text"}));
}

TEST(PrepareOutput, NeverReplacesWhatIsNoFile) {
  const testing::TemporaryDir dir;
  const auto old = dir.path() / "old.h5", link = dir.path() / "link.h5", pipe = dir.path() / "pipe";
  std::ofstream(old) << "\x89HDF\r\n\x1a\nrest";
  std::filesystem::create_symlink(old, link);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const bool overwrite : {false, true}) {
    testing::ExpectError([&] { PrepareOutput(link, overwrite); },
                         {"link.h5: is a symbolic link to " + old.string(), "name a file"});
    testing::ExpectError([&] { PrepareOutput(pipe, overwrite); }, {"pipe: is a pipe"});
    testing::ExpectError([&] { PrepareOutput("/dev/null", overwrite); },
                         {"/dev/null: is a device"});
  }
  TrajectoryFileInfo info;
  info.overwrite = true;
  testing::ExpectError([&] { TrajectoryFile(link, info); }, {"link.h5: is a symbolic link"});
  EXPECT_TRUE(std::filesystem::is_symlink(link));
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

TEST(PrepareOutput, RefusesTheStandardOutput) {
  testing::ExpectError([] { PrepareOutput("-", false); }, {"-: ", "name another"});
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
