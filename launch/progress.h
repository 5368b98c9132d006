// One line that shows how far a long run has come.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

namespace rollcast {

/// On a terminal the line is written over itself, at most ten times a second; elsewhere a new line
/// is written, at most one every two seconds. Used from one thread.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// Writes to standard error.
  Progress();
  Progress(std::FILE* out, bool terminal) : out_(out), terminal_(terminal) {}
  /// Leaves the last line standing.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows `line` unless the last one is too recent.
  void Show(std::string_view line) { Show(line, Clock::now()); }
  void Show(std::string_view line, Clock::time_point now);
  /// Shows `line` whatever the time, and keeps it: the next one starts a new line.
  void Keep(std::string_view line);

 private:
  std::FILE* out_;
  bool terminal_;
  bool open_ = false;    // a terminal line without its newline
  std::string skipped_;  // the newest line that was too soon; the destructor writes it
  bool shown_ = false;
  Clock::time_point last_{};
};

}  // namespace rollcast
