#include "launch/progress.h"

#include <gtest/gtest.h>

#include <memory>

namespace rollcast {
namespace {

using std::chrono::milliseconds;

class ProgressTest : public testing::Test {
 protected:
  std::string Text() {
    std::fflush(file_.get());
    std::rewind(file_.get());
    std::string text(4096, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file_.get()));
    return text;
  }
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), std::fclose};
  Progress::Clock::time_point start_ = Progress::Clock::time_point(milliseconds(5000));
};

TEST_F(ProgressTest, ATerminalLineIsWrittenOverItself) {
  {
    Progress progress(file_.get(), true);
    progress.Show("one", start_);
    progress.Show("two", start_ + milliseconds(99));
    progress.Show("three", start_ + milliseconds(100));
  }
  EXPECT_EQ(Text(), "\rone\x1b[K\rthree\x1b[K\n");
}

TEST_F(ProgressTest, ElsewhereLinesArePlainAndRare) {
  {
    Progress progress(file_.get(), false);
    progress.Show("one", start_);
    progress.Show("two", start_ + milliseconds(1999));
    progress.Show("three", start_ + milliseconds(2000));
  }
  EXPECT_EQ(Text(), "one\nthree\n");
}

TEST_F(ProgressTest, TheLastLineIsAlwaysWritten) {
  {
    Progress progress(file_.get(), false);
    progress.Show("one", start_);
    progress.Show("two", start_ + milliseconds(1));
    progress.Show("three", start_ + milliseconds(2));
  }
  EXPECT_EQ(Text(), "one\nthree\n");
}

TEST_F(ProgressTest, KeptLinesAreNeverSkippedAndStandAlone) {
  {
    Progress progress(file_.get(), true);
    progress.Show("one", start_);
    progress.Keep("kept");
    progress.Keep("kept too");
    progress.Show("skipped?", start_ + milliseconds(1));
  }
  EXPECT_EQ(Text(), "\rone\x1b[K\rkept\x1b[K\n\rkept too\x1b[K\n\rskipped?\x1b[K\n");
}

}  // namespace
}  // namespace rollcast
