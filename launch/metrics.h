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

/// Creates the folders above the file `path`, in which "{rank}" stands for the rank. Throws Error
/// when that fails, or when something other than an earlier metrics file is there.
void PrepareMetricsFile(const std::string& path, int rank);

/// Replaces that file as a whole, so that a reader never sees half of it: it writes a file of that
/// name with ".new" behind it, and renames it. Throws Error when it cannot be written, or when
/// something other than an earlier metrics file has one of the names.
void WriteMetricsFile(const std::string& path, const RankMetrics& metrics);

}  // namespace rollcast
