// The trajectory file of a run: one HDF5 file, readable by h5py in one line each.
//
// Root attributes: schema_version, rollcast_version, config (the resolved TOML), model_digest,
// manifest_digest, logprob_definition, closed and end (false and empty while the run goes on, and
// after it was killed; then how it has ended, see RunEnd). One row a completion in the equal-length
// columns under /trajectories; one row an update under /weight_updates. The flat datasets /tokens,
// /logprob, /logprob_raw, /logprob_filtered and /policy_version share one index: a row's prompt is
// tokens[prompt_offset:][:prompt_length], its completion
// tokens[completion_offset:][:completion_length], and the other four hold one value a completion
// token at the same place. At the places of prompt tokens they hold NaN and -1; logprob_filtered
// holds NaN wherever no filter was on. Completions of one group may share one copy of their prompt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "rollout/trajectory.h"

namespace rollcast {

constexpr int64_t kTrajectorySchemaVersion = 1;

struct TrajectoryFileInfo {
  std::string config;            // the resolved TOML
  uint64_t model_digest = 0;     // WeightStore::Digest of version 0
  uint64_t manifest_digest = 0;  // WeightManifest::digest
  std::string rollcast_version;  // empty: of this build
  bool overwrite = false;        // replace an existing file; else it is an error
};

/// How a run has ended, in the words of the attribute `end`.
struct RunEnd {
  std::string text;

  static RunEnd Completed() { return {"completed"}; }
  /// "stopped by SIGINT".
  static RunEnd StoppedBy(const std::string& signal) { return {"stopped by " + signal}; }
  /// "failed: rollout rank 2 is lost: ..."; `why` is one line.
  static RunEnd Failed(const std::string& why) { return {"failed: " + why}; }
};

class Hdf5Appender;
class Hdf5File;

/// The writer. Whenever its process is killed, the file opens in any HDF5 reader, without flags or
/// repair, and holds everything whose Append or AppendUpdate had returned (hdf5_appender.h says
/// how). A failed write throws Error naming the path; what was there stays readable and later calls
/// refuse. Append of 64 rows of 100 tokens takes well under a millisecond. Used from one thread.
class TrajectoryFile {
 public:
  /// Throws Error when `path` cannot be created, exists and info.overwrite is false, or is being
  /// written by another process.
  TrajectoryFile(const std::filesystem::path& path, const TrajectoryFileInfo& info);
  /// Closes as a failed run, if Close was not called; what goes wrong then goes unsaid.
  ~TrajectoryFile();
  TrajectoryFile(const TrajectoryFile&) = delete;
  TrajectoryFile& operator=(const TrajectoryFile&) = delete;

  /// All of `trajectories` or, if the process is killed on the way, none. Array lengths and spans
  /// must fit the completion (CheckFailure otherwise, and nothing is written).
  void Append(std::span<const Trajectory> trajectories);
  void AppendUpdate(const SyncReport& report);
  /// Waits until the disk itself has what has been appended. A killed process loses nothing
  /// without it; it bounds what a power failure can cost.
  void Flush();
  /// The file is complete, and says how the run has ended. A second call does nothing.
  void Close(const RunEnd& end);

  /// False where the file system has no locks, so that a second writer would go unnoticed.
  bool locked() const { return locked_; }
  /// Appended so far.
  int64_t rows() const;

 private:
  struct SharedPrompt {
    std::vector<int32_t> tokens;
    int64_t offset = 0;
    int32_t rows_left = 0;  // of the group
  };
  /// Offset in /tokens of the row's prompt, which is stored now unless its group has it already.
  int64_t PlacePrompt(const Trajectory& trajectory);

  std::unique_ptr<Hdf5Appender> file_;  // null once closed
  bool locked_ = false;
  int64_t closed_rows_ = 0;
  std::unordered_map<uint64_t, SharedPrompt> shared_prompts_;  // by group
};

/// A trajectory with its place in the flat datasets.
struct TrajectoryRow {
  Trajectory trajectory;  // arrays (and spans) empty until ReadTokens
  PolicyVersion version_first = 0, version_last = 0;
  int64_t prompt_offset = 0, completion_offset = 0;
  int32_t prompt_length = 0, completion_length = 0;

  /// Versions that the oldest token was behind the live one when the row was returned.
  PolicyVersion policy_lag() const { return trajectory.live_version_at_return - version_first; }
};

/// Reads what TrajectoryFile wrote, also while it is still being written: the state at the time of
/// opening. Used from one thread; see Hdf5File for the rule among files.
class TrajectoryReader {
 public:
  /// Throws Error when there is no such file or it is not a trajectory file of this schema.
  explicit TrajectoryReader(const std::filesystem::path& path);
  ~TrajectoryReader();
  TrajectoryReader(TrajectoryReader&&) noexcept;

  const TrajectoryFileInfo& info() const { return info_; }
  /// False when the run is still going on or was killed.
  bool closed() const { return closed_; }
  /// RunEnd::text; empty when closed() is false.
  const std::string& end() const { return end_; }
  int64_t rows() const { return rows_; }

  /// Rows [begin, begin + count) without their arrays.
  std::vector<TrajectoryRow> ReadRows(int64_t begin, int64_t count) const;
  /// Fills the arrays and spans of a row.
  void ReadTokens(TrajectoryRow& row) const;
  /// One whole trajectory. `hidden` is not kept in the file.
  Trajectory Read(int64_t row) const;
  std::vector<SyncReport> ReadUpdates() const;

 private:
  std::unique_ptr<Hdf5File> file_;
  TrajectoryFileInfo info_;
  bool closed_ = false;
  std::string end_;
  int64_t rows_ = 0;
};

}  // namespace rollcast
