#include "engine/input_stream.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "kernels/check.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using testing::ExpectError;

TEST(OpenInput, ReadsAFile) {
  const testing::TemporaryDir dir;
  std::ofstream(dir.path() / "a file") << "one\r\ntwo";
  std::ifstream in = OpenInput(dir.path() / "a file");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "one\r\ntwo");
}

TEST(OpenInput, SaysWhyItCannot) {
  const testing::TemporaryDir dir;
  const std::string folder = dir.path(), none = folder + "/none";
  ExpectError([&] { OpenInput(none); }, {none + ": cannot be opened: No such file or directory"});
  ExpectError([&] { OpenInput(folder); }, {folder + ": is a folder, expected a file"});
  std::ofstream(none) << "a file";
  ExpectError([&] { OpenInput(none + "/in"); }, {"/in: cannot be opened: Not a directory"});
}

}  // namespace
}  // namespace rollcast
