#include "tests/testing/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "kernels/check.h"

namespace rollcast::testing {

namespace {

// Built before fork: after it, a process with threads may only call what is async-signal-safe.
std::vector<std::string> Environment() {
  std::vector<std::string> environment = {
      "OMPI_ALLOW_RUN_AS_ROOT=1",
      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
      "OMPI_MCA_plm=isolated",
      "OMPI_MCA_rmaps_base_oversubscribe=1",
      "OMPI_MCA_hwloc_base_binding_policy=none",
      "OMPI_MCA_mpi_yield_when_idle=1",
      "OMPI_MCA_btl=self,vader",
      "OMPI_MCA_pml=ob1",
      "OMPI_MCA_btl_vader_single_copy_mechanism=none",
  };
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    bool known = false;
    for (const std::string& mine : environment) known = known || mine.starts_with(name);
    if (!known) environment.push_back(text);
  }
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

CommandResult RunCommand(const std::vector<std::string>& args, std::chrono::seconds limit,
                         const std::function<void(const std::string&, int)>& while_running) {
  std::vector<std::string> arg_strings = args, environment = Environment();
  const std::vector<char*> argv = Pointers(arg_strings), envp = Pointers(environment);
  int fds[2];
  RC_CHECK_EQ(pipe2(fds, O_CLOEXEC), 0);
  const pid_t pid = fork();
  RC_CHECK_GE(pid, 0);
  if (pid == 0) {
    setpgid(0, 0);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(fds[1], STDOUT_FILENO);
    dup2(fds[1], STDERR_FILENO);
    execvpe(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  setpgid(pid, pid);
  close(fds[1]);

  CommandResult result;
  const auto end = std::chrono::steady_clock::now() + limit;
  char buffer[4096];
  bool open = true;
  while (open) {
    pollfd readable = {fds[0], POLLIN, 0};
    if (poll(&readable, 1, 20) > 0) {
      const ssize_t size = read(fds[0], buffer, sizeof buffer);
      if (size > 0) result.out.append(buffer, static_cast<size_t>(size));
      // A grandchild may hold the pipe open after the child has gone; then the limit ends it.
      open = size > 0;
    }
    if (while_running) while_running(result.out, pid);
    if (std::chrono::steady_clock::now() > end && !result.timed_out) {
      result.timed_out = true;
      kill(-pid, SIGKILL);
      break;
    }
  }
  close(fds[0]);
  int wait_status = 0;
  waitpid(pid, &wait_status, 0);
  result.status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
  return result;
}

CommandResult RunRollcast(std::vector<std::string> args, std::chrono::seconds limit) {
  args.insert(args.begin(), ROLLCAST_BINARY);
  return RunCommand(args, limit);
}

}  // namespace rollcast::testing
