// Conditions on trajectories, as a user writes them: reward>0.5, outcome=completed.
#pragma once

#include <string>
#include <vector>

#include "rollout/trajectory_file.h"

namespace rollcast {

class RowFilter {
 public:
  /// "FIELD OP VALUE" (launch/inspect_command.h); throws Error that quotes `text`.
  explicit RowFilter(const std::string& text);
  /// A comparison with a missing (NaN) reward is false, but for "!=".
  bool Passes(const TrajectoryRow& row) const;

 private:
  enum class Op { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kContains };
  template <class T>
  bool Compare(const T& a, const T& b) const;

  std::string field_;
  Op op_ = Op::kEqual;
  std::string value_;
  TrajectoryRow wanted_;  // with the value in the place of the field
  PolicyVersion wanted_lag_ = 0;
};

/// The names that a filter may start with.
std::vector<std::string> FilterFields();

}  // namespace rollcast
