#include "launch/metrics.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/check.h"

namespace rollcast {
namespace {

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
  const auto folder = std::filesystem::temp_directory_path() / "rollcast_metrics_test";
  std::filesystem::create_directories(folder);
  const std::string pattern = (folder / "rollcast-{rank}.prom").string();
  WriteMetricsFile(pattern, Sample());
  WriteMetricsFile(pattern, Sample());
  std::ifstream file(folder / "rollcast-2.prom");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), RenderMetrics(Sample()));
  EXPECT_FALSE(std::filesystem::exists(folder / "rollcast-2.prom.new"));
  std::filesystem::remove_all(folder);
  EXPECT_THROW(WriteMetricsFile(pattern, Sample()), Error);
}

}  // namespace
}  // namespace rollcast
