// Programs as child processes, for tests of the executable and of real mpirun jobs.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace rollcast::testing {

struct CommandResult {
  int status = -1;  // exit status; 128 + signal when one ended it
  bool timed_out = false;
  std::string out;  // standard output and standard error together, in order
};

/// Runs `args` (args[0] is looked up in PATH) without standard input, in a process group of its own
/// that is killed after `limit`. Open MPI is set up for one host, root and few cores, as
/// set_mpi_environment of launch/lib.sh does. `while_running` (may be null) is called about every
/// 20 ms with what has been written so far and the child's process id; e.g. to kill something.
CommandResult RunCommand(
    const std::vector<std::string>& args, std::chrono::seconds limit,
    const std::function<void(const std::string& so_far, int pid)>& while_running = nullptr);

/// The rollcast executable with `args`.
CommandResult RunRollcast(std::vector<std::string> args,
                          std::chrono::seconds limit = std::chrono::seconds(60));

}  // namespace rollcast::testing
