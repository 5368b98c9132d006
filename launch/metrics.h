// Counters of one rank as Prometheus text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "rollout/trajectory.h"

namespace rollcast {

struct RankMetrics {
  int rank = 0;
  EngineStats engine;
  std::array<int64_t, 6> outcomes{};      // completions returned, by Outcome
  std::optional<SyncReport> last_update;  // committed or refused
};

/// The text exposition format, version 0.0.4.
std::string RenderMetrics(const RankMetrics& metrics);

/// `path`, in which "{rank}" stands for the rank.
std::string MetricsFile(const std::string& path, int rank);

/// Replaces MetricsFile(path, metrics.rank) as a whole, so that a reader never sees
/// half of it. Throws Error when it cannot be written.
void WriteMetricsFile(const std::string& path, const RankMetrics& metrics);

}  // namespace rollcast
