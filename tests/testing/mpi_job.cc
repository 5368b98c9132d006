#include "tests/testing/mpi_job.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "kernels/check.h"

namespace rollcast::testing {

namespace {

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/// The value of `name` in the environment of a process; empty when there is none.
std::string EnvironmentOf(const std::filesystem::path& process, const std::string& name) {
  std::stringstream environment(ReadAll(process / "environ"));
  std::string entry;
  while (std::getline(environment, entry, '\0'))
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  return "";
}

std::vector<std::filesystem::path> Processes(const std::string& marker) {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored))
    if (entry.path().filename().string().find_first_not_of("0123456789") == std::string::npos &&
        EnvironmentOf(entry.path(), "ROLLCAST_TEST_JOB") == marker)
      found.push_back(entry.path());
  return found;
}

pid_t Pid(const std::filesystem::path& process) { return std::stoi(process.filename().string()); }

}  // namespace

std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

MpiJob::MpiJob(const std::string& command, const std::filesystem::path& folder) : folder_(folder) {
  static std::atomic<int> jobs{0};
  marker_ = StrCat(getpid(), "-", ++jobs);
  pid_ = fork();
  RC_CHECK(pid_ >= 0);
  if (pid_ > 0) return;
  setpgid(0, 0);
  setenv("ROLLCAST_TEST_JOB", marker_.c_str(), 1);
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                           "OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_mpi_yield_when_idle"})
    setenv(name, "1", 1);
  setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  dup2(open((folder / "out").c_str(), flags, 0600), STDOUT_FILENO);
  dup2(open((folder / "err").c_str(), flags, 0600), STDERR_FILENO);
  execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
  _exit(127);
}

MpiJob::~MpiJob() {
  if (!Ended()) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const auto& process : Processes(marker_)) kill(Pid(process), SIGKILL);
}

bool MpiJob::Ended() {
  if (ended_) return true;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended_ = true;
}

void MpiJob::Signal(int signal) {
  if (!Ended()) kill(pid_, signal);
}

bool MpiJob::KillRank(int rank, int signal) {
  for (const auto& process : Processes(marker_))
    if (EnvironmentOf(process, "OMPI_COMM_WORLD_RANK") == std::to_string(rank) &&
        ReadAll(process / "comm") == "rollcast\n")
      return kill(Pid(process), signal) == 0;
  return false;
}

std::vector<pid_t> MpiJob::Find(const std::string& name) const {
  std::vector<pid_t> found;
  // Not by the command line: those of mpirun and of every rank name the scorer's program, too.
  for (const auto& process : Processes(marker_))
    if (ReadAll(process / "comm") == name + "\n") found.push_back(Pid(process));
  return found;
}

bool MpiJob::WaitFor(const std::function<bool()>& condition, std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (Ended() || std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

int MpiJob::Wait(std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!Ended()) {
    if (std::chrono::steady_clock::now() >= deadline) return -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return status_;
}

std::string MpiJob::out() const { return ReadAll(folder_ / "out"); }
std::string MpiJob::err() const { return ReadAll(folder_ / "err"); }

}  // namespace rollcast::testing
