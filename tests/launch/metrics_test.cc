#include "launch/metrics.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/check.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using testing::ExpectError;

RankMetrics Sample() {
  RankMetrics m;
  m.rank = 2;
  m.engine.version = 7;
  m.engine.decode_tokens = 1234567890123;
  m.engine.step_s = 0.25;
  m.outcomes[static_cast<size_t>(Outcome::kOverLag)] = 3;
  return m;
}

TEST(Metrics, RendersPrometheusText) {
  const std::string text = RenderMetrics(Sample());
  for (const char* line :
       {"# TYPE rollcast_policy_version gauge\n", "\nrollcast_policy_version{rank=\"2\"} 7\n",
        "\n# TYPE rollcast_decode_tokens_total counter\n",
        "\nrollcast_decode_tokens_total{rank=\"2\"} 1234567890123\n",
        "\nrollcast_step_seconds_total{rank=\"2\"} 0.25\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  EXPECT_NE(text.find(std::string("rollcast_trajectories_total{rank=\"2\",outcome=\"") +
                      Name(Outcome::kOverLag) + "\"} 3\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("last_update"), std::string::npos);
}

TEST(Metrics, ShowsTheLastUpdateByPhase) {
  RankMetrics m = Sample();
  SyncReport& update = m.last_update.emplace();
  update.committed = true;
  update.transfer_s = 1.5;
  update.pause_s = 0.125;
  const std::string text = RenderMetrics(m);
  for (const char* line : {"rollcast_last_update_committed{rank=\"2\"} 1\n",
                           "rollcast_last_update_pause_seconds{rank=\"2\"} 0.125\n",
                           "rollcast_last_update_seconds{rank=\"2\",phase=\"transfer\"} 1.5\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
}

TEST(Metrics, FileIsReplacedWholeAndNamedByRank) {
  const testing::TemporaryDir dir;
  const auto folder = dir.path() / "new";
  const std::string pattern = (folder / "rollcast-{rank}.prom").string();
  {
    MetricsFile file(pattern, 2);
    for (int i = 0; i < 3; ++i) file.Write(Sample());
    std::ifstream written(folder / "rollcast-2.prom");
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(written), {}), RenderMetrics(Sample()));
    EXPECT_FALSE(std::filesystem::exists(folder / "rollcast-2.prom.new"));
    std::filesystem::remove(folder / "rollcast-2.prom");  // as a tidy user may
    file.Write(Sample());
  }
  MetricsFile later(pattern, 2);
  std::filesystem::remove_all(folder);
  ExpectError([&] { later.Write(Sample()); }, {"rollcast-2.prom: cannot be written: No such file"});
}

TEST(Metrics, OneFileHasOneWriter) {
  const testing::TemporaryDir dir;
  const std::string path = (dir.path() / "m.prom").string();
  MetricsFile other(path, 1);
  {
    MetricsFile file(path, 0);
    file.Write(Sample());
    const std::string text = StrCat("metrics.file ", path, ": another job is writing it");
    const std::string remedy = "; {rank} in the name keeps the files of several ranks apart";
    ExpectError([&] { other.Write(Sample()); }, {text, remedy});
    ExpectError([&] { MetricsFile(path, 1); }, {text, remedy});
    file.Write(Sample());
  }
  other.Write(Sample());
}

TEST(Metrics, ReplacesNothingButMetrics) {
  const testing::TemporaryDir dir;
  const auto path = dir.path() / "m.prom";
  MetricsFile begun(path, 0);
  const auto expect_refused = [&](const std::string& message) {
    const std::string key = "metrics.file " + dir.path().string();
    ExpectError([&] { MetricsFile(path, 0); }, {key, message});
    ExpectError([&] { begun.Write(Sample()); }, {key, message});
  };
  const auto text = [&](const char* name) {
    std::ifstream file(dir.path() / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  std::ofstream(path) << "up{job=\"mine\"} 1\n";
  expect_refused(
      "m.prom: is not an earlier metrics file, and nothing else is replaced; name another output, "
      "or remove it");
  EXPECT_EQ(text("m.prom"), "up{job=\"mine\"} 1\n");
  std::filesystem::rename(path, dir.path() / "m.prom.new");
  expect_refused("m.prom.new: is not an earlier metrics file");
  EXPECT_EQ(text("m.prom.new"), "up{job=\"mine\"} 1\n");
  std::filesystem::remove(dir.path() / "m.prom.new");
  std::filesystem::create_symlink("/dev/null", path);
  expect_refused("m.prom: is a symbolic link to /dev/null");
  std::filesystem::remove(path);
  for (int run = 0; run < 2; ++run) {
    MetricsFile(path, 0).Write(Sample());
  }
  EXPECT_EQ(text("m.prom"), RenderMetrics(Sample()));
}

}  // namespace
}  // namespace rollcast
