#include "launch/log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/check.h"

namespace rollcast {
namespace {

TEST(Log, WritesWhoLevelAndMessageToBothPlaces) {
  const auto path = std::filesystem::temp_directory_path() / "rollcast_log_test.txt";
  std::filesystem::remove(path);
  testing::internal::CaptureStderr();
  OpenLog({.level = "warn", .file = path.string()}, "rank 3");
  LogInfo("not shown");
  LogWarn("late: {} % braces and percent stay");
  LogError("gone: ValueError: a\n  b\t\x1b[1m");
  const std::string console = testing::internal::GetCapturedStderr();
  OpenLog(LogSettings(), "");
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  for (const std::string& written : {console, text}) {
    EXPECT_EQ(written.find("not shown"), std::string::npos);
    EXPECT_NE(written.find(" [rank 3] warning: late: {} % braces and percent stay\n"),
              std::string::npos)
        << written;
    EXPECT_NE(written.find(" [rank 3] error: gone: ValueError: a\\n  b\\x09\\x1b[1m\n"),
              std::string::npos)
        << written;
  }
  std::filesystem::remove(path);
}

TEST(Log, AFileThatCannotBeOpenedIsAnError) {
  try {
    OpenLog({.file = "/proc/no/such/folder/log.txt"}, "rank 0");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("log.file /proc/no/such/folder/log.txt"),
              std::string::npos)
        << e.what();
  }
  EXPECT_THROW(OpenLog({.file = "-"}, "rank 0"), Error) << "a file of that name";
}

}  // namespace
}  // namespace rollcast
