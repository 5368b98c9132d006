// A child process that is spoken to through its standard input and output, and never waited for
// without a deadline.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>

namespace rollcast {

/// Runs a shell command line in a process group of its own, with no file descriptors of ours but
/// the three standard ones, default signal handling, and without the variables that would make it
/// take itself for a rank of our MPI job. What it writes to standard error appears on ours, line by
/// line, behind a prefix. The destructor ends it, and so does the end of our process, whatever
/// that is. Used from one thread at a time.
class ChildProcess {
 public:
  using Clock = std::chrono::steady_clock;

  /// Throws Error when there is no shell, or no process or descriptor to be had.
  ChildProcess(const std::string& command_line, std::string stderr_prefix);
  /// Closes its input, gives it a moment to end by itself, and kills the whole group.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  enum class Progress {
    kMoved,     // bytes went in or came out
    kClosed,    // it has ended, or closed a stream; all it wrote has been read
    kDeadline,  // nothing moved
  };
  /// Writes from the front of `outgoing`, which shrinks by what was taken, and appends what it
  /// wrote to `incoming`; returns as soon as anything moved.
  Progress Exchange(std::string_view& outgoing, std::string& incoming, Clock::time_point deadline);

  /// True once the process that was started has ended.
  bool Ended() const;

  /// Kills the group after `grace` and says how the process ended: "exited with status 3".
  std::string End(std::chrono::milliseconds grace);

 private:
  void StartGuard();
  void EndGuard();
  bool Read(int fd, std::string& into);
  void PassOnStderr(bool all);

  const std::string stderr_prefix_;
  pid_t pid_ = -1;  // also its process group; -1 once it has been reaped
  pid_t guard_ = -1;
  int guarded_ = -1;  // the guard kills the group when this is closed
  int stdin_ = -1, stdout_ = -1, stderr_ = -1;
  std::string stderr_text_;  // an unfinished line
  std::string end_;          // what End says from the second call on
};

}  // namespace rollcast
