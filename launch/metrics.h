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

/// Replaces `path` ("{rank}" in it stands for the rank) as a whole, so that a reader never sees
/// half of it. Throws Error when it cannot be written.
void WriteMetricsFile(const std::string& path, const RankMetrics& metrics);

}  // namespace rollcast
