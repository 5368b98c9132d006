#include "engine/input_stream.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "kernels/check.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using testing::ExpectError;

TEST(Exists, TakesNothingThatIsThereForAbsent) {
  const testing::TemporaryDir dir;
  EXPECT_TRUE(Exists(dir.path()));
  EXPECT_FALSE(Exists(dir.path() / "none"));
  EXPECT_FALSE(Exists(dir.path() / "none" / "in"));
  std::ofstream(dir.path() / "file") << "text";
  EXPECT_TRUE(Exists(dir.path() / "file"));
  EXPECT_FALSE(Exists(dir.path() / "file" / "in"));
  std::filesystem::create_symlink("none", dir.path() / "link");
  EXPECT_TRUE(Exists(dir.path() / "link"));
  std::filesystem::create_symlink("loop", dir.path() / "loop");
  ExpectError([&] { Exists(dir.path() / "loop" / "in"); },
              {"loop/in: cannot be found: Too many levels of symbolic links"});
}

TEST(InputStream, ReadsAFile) {
  const testing::TemporaryDir dir;
  std::ofstream(dir.path() / "a file") << "one\r\ntwo\n" << std::string(300'000, 'x');
  InputStream in(dir.path() / "a file");
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  EXPECT_EQ(line, "one\r");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}),
            "two\n" + std::string(300'000, 'x'));
  EXPECT_FALSE(std::getline(in, line));
}

TEST(InputStream, SaysWhyItCannotBeOpened) {
  const testing::TemporaryDir dir;
  const std::string folder = dir.path(), none = folder + "/none";
  ExpectError([&] { InputStream in(none); },
              {none + ": cannot be opened: No such file or directory"});
  ExpectError([&] { InputStream in(folder); }, {folder + ": is a folder, expected a file"});
  std::ofstream(none) << "a file";
  ExpectError([&] { InputStream in(none + "/in"); }, {"/in: cannot be opened: Not a directory"});
}

TEST(InputStream, SaysWhyAReadHasFailed) {
  const std::string broken = "/proc/self/mem", why = broken + ": cannot be read: Input/output";
  std::string line;
  ExpectError(
      [&] {
        InputStream in(broken);
        std::getline(in, line);
      },
      {why});
  ExpectError(
      [&] {
        InputStream in(broken);
        line.assign(std::istreambuf_iterator<char>(in), {});
      },
      {why});
}

}  // namespace
}  // namespace rollcast
