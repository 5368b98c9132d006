// rollcast inspect: what is in a trajectory file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

namespace rollcast {

struct InspectOptions {
  std::filesystem::path file;
  bool jsonl = false;   // one JSON object a row instead of the summary
  bool config = false;  // the run's configuration instead of the summary
  /// Each "FIELD OP VALUE"; a row must pass all. FIELD: a column of /trajectories or policy_lag.
  /// OP: = != < <= > >=, and ~ (contains) for texts. Spaces around OP do not matter.
  std::vector<std::string> filters;
  int64_t limit = -1;  // rows that pass, at most; -1 = all
};

/// Prints to `out` and returns the exit status, 0. Throws Error for a file that is not ours, a
/// filter that cannot be understood, or output that cannot be written.
int RunInspect(const InspectOptions& options, std::ostream& out);

}  // namespace rollcast
