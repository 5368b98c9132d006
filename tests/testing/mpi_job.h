// A real job: processes under mpirun, which can be killed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace rollcast::testing {

/// Quotes `text` for the shell.
std::string Quoted(const std::string& text);

/// One `sh -c command` with mpirun's settings for a test machine. Killed, with all its processes,
/// when the object goes.
class MpiJob {
 public:
  /// Standard output and error go to files in `folder`.
  MpiJob(const std::string& command, const std::filesystem::path& folder);
  ~MpiJob();
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  /// To mpirun (or to the command, where it is another).
  void Signal(int signal);
  /// A signal to the process of MPI rank `rank`; false when it is not there.
  bool KillRank(int rank, int signal = SIGKILL);
  /// Processes of the job that run the program `name`.
  std::vector<pid_t> Find(const std::string& name) const;
  /// Polls `condition` until it holds; false when the job has ended or after `limit`.
  bool WaitFor(const std::function<bool()>& condition, std::chrono::seconds limit);
  /// The exit status (128 + signal when killed); -1 when it has not ended by itself within `limit`.
  int Wait(std::chrono::seconds limit);

  std::string out() const;
  std::string err() const;

 private:
  bool Ended();

  std::filesystem::path folder_;
  std::string marker_;  // in the environment of all its processes
  pid_t pid_ = -1;
  int status_ = -1;
  bool ended_ = false;
};

}  // namespace rollcast::testing
