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

/// The file of one rank's metrics, written again and again. Replaces an earlier one, and nothing
/// else; while it lives, others that would replace it are refused. Used from one thread.
class MetricsFile {
 public:
  /// `path`, in which "{rank}" stands for the rank. Creates the folders above it, but no file.
  /// Throws Error when that fails, when something other than an earlier metrics file is there, or
  /// when another job or rank writes it.
  MetricsFile(const std::string& path, int rank);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// Replaces the file as a whole, so that a reader never sees half of it: writes a file of that
  /// name with ".new" behind it, and renames it. Throws Error as the constructor does, or when it
  /// cannot be written.
  void Write(const RankMetrics& metrics);

 private:
  void RequireReplaceable() const;
  [[noreturn]] void Fail(const std::string& why) const;

  const std::string hint_;  // behind what is wrong with the file
  const std::string name_, temporary_;
  int written_ = -1;  // the file as it is now, open and marked as being written
};

}  // namespace rollcast
