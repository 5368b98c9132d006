#include "rollout/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/check.h"

namespace rollcast {

namespace {

// How often the end of a process is looked for whose descendants hold its streams open.
constexpr int kLookInterval_ms = 100;
constexpr size_t kMaxStderrLine = 64 << 10;

std::string ErrnoMessage(int error) { return std::generic_category().message(error); }

struct Pipe {
  int read = -1, write = -1;

  Pipe() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0)
      throw Error(StrCat("scorer command: no pipe: ", ErrnoMessage(errno)));
    read = fds[0];
    write = fds[1];
  }
  ~Pipe() {
    if (read >= 0) ::close(read);
    if (write >= 0) ::close(write);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
};

/// Hands the descriptor over, set to never block.
int Take(int& fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  return std::exchange(fd, -1);
}

void Close(int& fd) {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

/// Our environment without what mpirun put there.
std::vector<char*> ChildEnvironment() {
  constexpr std::string_view kPrefixes[] = {"OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_"};
  std::vector<char*> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    if (std::none_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](auto prefix) { return text.starts_with(prefix); }))
      result.push_back(*entry);
  }
  result.push_back(nullptr);
  return result;
}

/// sh -c `command_line` in a group of its own; descriptor i of it is ours of `descriptors[i]`, or
/// as it is with us where that is negative. The error's number in place of an id.
pid_t Spawn(const std::string& command_line, std::array<int, 3> descriptors, int& error) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (int i = 0; i < 3; ++i)
    if (descriptors[static_cast<size_t>(i)] >= 0)
      posix_spawn_file_actions_adddup2(&actions, descriptors[static_cast<size_t>(i)], i);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::string shell = "sh", flag = "-c", command = command_line;
  char* arguments[] = {shell.data(), flag.data(), command.data(), nullptr};
  pid_t pid = -1;
  error =
      ::posix_spawn(&pid, "/bin/sh", &actions, &attributes, arguments, ChildEnvironment().data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -1;
}

/// write() whose SIGPIPE, if it raises one, is never delivered: it is directed at this thread, so
/// it stays pending while blocked and can be taken back.
ssize_t WriteWithoutSignal(int fd, std::string_view bytes) {
  sigset_t pipe_signal, before, pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const ssize_t written = ::write(fd, bytes.data(), bytes.size());
  const int error = errno;
  if (written < 0 && error == EPIPE && !was_pending) {
    const timespec now = {};
    while (::sigtimedwait(&pipe_signal, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return written;
}

std::string Describe(int code, int status) {
  if (code == CLD_EXITED) return StrCat("exited with status ", status);
  return StrCat("was ended by signal ", status, " (", ::strsignal(status), ")");
}

}  // namespace

ChildProcess::ChildProcess(const std::string& command_line, std::string stderr_prefix)
    : stderr_prefix_(std::move(stderr_prefix)) {
  Pipe in, out, err;
  int error = 0;
  pid_ = Spawn(command_line, {in.read, out.write, err.write}, error);
  if (pid_ < 0)
    throw Error(StrCat("scorer command \"", command_line,
                       "\": cannot start /bin/sh: ", ErrnoMessage(error)));
  stdin_ = Take(in.write);
  stdout_ = Take(out.read);
  stderr_ = Take(err.read);
  StartGuard();
}

// A process that is killed cannot end its children. This one of ours lives until our end of a pipe
// closes, as it does then.
void ChildProcess::StartGuard() {
  Pipe lifeline;
  int error = 0;
  guard_ = Spawn(StrCat("read -r ended; kill -KILL -", pid_), {lifeline.read, -1, -1}, error);
  if (guard_ > 0) guarded_ = std::exchange(lifeline.write, -1);
}

// While the group's first process is there, so that the guard can meet no other of its number.
void ChildProcess::EndGuard() {
  if (guard_ < 0) return;
  ::kill(guard_, SIGKILL);
  while (::waitpid(guard_, nullptr, 0) < 0 && errno == EINTR) {
  }
  guard_ = -1;
  Close(guarded_);
}

ChildProcess::~ChildProcess() {
  End(std::chrono::milliseconds(300));
  Close(stdout_);
  Close(stderr_);
}

bool ChildProcess::Ended() const {
  if (pid_ < 0) return true;
  siginfo_t info = {};
  // WNOWAIT leaves it a zombie, so that its id, which is also the group's, cannot be given away.
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
    return errno == ECHILD;
  return info.si_pid == pid_;
}

ChildProcess::Progress ChildProcess::Exchange(std::string_view& outgoing, std::string& incoming,
                                              Clock::time_point deadline) {
  while (true) {
    const bool wants_write = !outgoing.empty() && stdin_ >= 0;
    const bool dying = Ended() || (!outgoing.empty() && stdin_ < 0);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    const int wait_ms =
        dying ? 0 : static_cast<int>(std::clamp<int64_t>(left.count(), 0, kLookInterval_ms));
    // A negative descriptor is one that poll passes over.
    pollfd fds[] = {{stdout_, POLLIN, 0}, {stderr_, POLLIN, 0}, {-1, POLLOUT, 0}};
    if (wants_write) fds[2].fd = stdin_;
    const int ready = ::poll(fds, 3, wait_ms);
    if (ready < 0 && errno != EINTR)
      throw Error(StrCat("scorer command: poll: ", ErrnoMessage(errno)));
    if (ready > 0) {
      bool moved = false;
      if (fds[1].revents) {
        if (!Read(stderr_, stderr_text_)) Close(stderr_);
        PassOnStderr(false);
      }
      if (fds[0].revents) {
        const size_t before = incoming.size();
        if (!Read(stdout_, incoming)) Close(stdout_);
        moved = incoming.size() > before;
      }
      if (fds[2].revents) {
        const ssize_t written = WriteWithoutSignal(stdin_, outgoing);
        if (written > 0) {
          outgoing.remove_prefix(static_cast<size_t>(written));
          moved = true;
        } else if (written < 0 && errno != EAGAIN && errno != EINTR) {
          Close(stdin_);
        }
      }
      if (moved) return Progress::kMoved;
    }
    if (stdout_ < 0 || (dying && ready == 0)) return Progress::kClosed;
    if (Clock::now() >= deadline) return Progress::kDeadline;
  }
}

bool ChildProcess::Read(int fd, std::string& into) {
  char buffer[65536];
  const ssize_t count = ::read(fd, buffer, sizeof(buffer));
  if (count > 0) into.append(buffer, static_cast<size_t>(count));
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

void ChildProcess::PassOnStderr(bool all) {
  size_t begin = 0;
  while (begin < stderr_text_.size()) {
    size_t end = stderr_text_.find('\n', begin);
    if (end == std::string::npos) {
      if (!all && stderr_text_.size() - begin < kMaxStderrLine) break;
      end = stderr_text_.size();
    }
    const std::string line = StrCat(stderr_prefix_, stderr_text_.substr(begin, end - begin), "\n");
    std::fwrite(line.data(), 1, line.size(), stderr);
    begin = std::min(end + 1, stderr_text_.size());
  }
  stderr_text_.erase(0, begin);
}

std::string ChildProcess::End(std::chrono::milliseconds grace) {
  if (pid_ < 0) return end_;
  Close(stdin_);
  const auto until = Clock::now() + grace;
  while (!Ended() && Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const bool ended_itself = Ended();
  EndGuard();
  ::kill(-pid_, SIGKILL);
  siginfo_t info = {};
  int result;
  while ((result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED)) != 0 &&
         errno == EINTR) {
  }
  // Without a zombie to reap (SIGCHLD is ignored somewhere in this process) the status is lost.
  if (result != 0)
    end_ = "ended";
  else
    end_ = ended_itself ? Describe(info.si_code, info.si_status) : "was killed";
  pid_ = -1;
  // What it said last often tells why. A pipe holds no more than this; a descendant that left the
  // group could go on writing for ever.
  for (int i = 0; i < 16 && stderr_ >= 0; ++i) {
    const size_t before = stderr_text_.size();
    if (!Read(stderr_, stderr_text_)) Close(stderr_);
    if (stderr_text_.size() == before) break;
    PassOnStderr(false);
  }
  PassOnStderr(true);
  return end_;
}

}  // namespace rollcast
