#include "rollout/writer_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "kernels/check.h"

namespace rollcast {

namespace {

// Locks may lie beyond a file's end: writers' cover what a file can ever hold, readers' a byte
// behind that.
constexpr off_t kReaderByte = off_t{1} << 62;

struct flock Range(short type, off_t begin, off_t length) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = begin;
  range.l_len = length;
  return range;
}

WriterLock Lock(int fd, struct flock range) {
  int result;
  while ((result = ::fcntl(fd, F_OFD_SETLK, &range)) != 0 && errno == EINTR) {
  }
  if (result == 0) return WriterLock::kHeld;
  return errno == EAGAIN || errno == EACCES ? WriterLock::kTaken : WriterLock::kUnsupported;
}

/// What stands at `path` instead of a regular file; empty for one, and where there is nothing.
std::string OtherThanAFile(const std::filesystem::path& path) {
  using std::filesystem::file_type;
  std::error_code error;
  switch (std::filesystem::symlink_status(path, error).type()) {
    case file_type::not_found:
    case file_type::none:
    case file_type::regular:
      return "";
    case file_type::directory:
      return "a folder";
    case file_type::symlink:
      return StrCat("a symbolic link to ", std::filesystem::read_symlink(path, error).string());
    case file_type::character:
    case file_type::block:
      return "a device";
    case file_type::fifo:
      return "a pipe";
    case file_type::socket:
      return "a socket";
    default:
      return "no regular file";
  }
}

/// Whether the file is empty or starts with `signature`.
bool IsOfKind(int fd, std::string_view signature) {
  std::string start(signature.size(), 0);
  const ssize_t n = ::pread(fd, start.data(), start.size(), 0);
  return n == 0 || (n == static_cast<ssize_t>(start.size()) && start == signature);
}

}  // namespace

bool IsOpenAs(const std::filesystem::path& path, int fd) {
  struct stat opened = {}, named = {};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

WriterLock HoldAsWriter(int fd) { return Lock(fd, Range(F_RDLCK, 0, kReaderByte)); }

ReaderMark::ReaderMark(const std::filesystem::path& path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0 && errno == ENOENT) throw Error(StrCat(path.string(), ": no such file"));
  if (fd_ < 0)
    throw Error(
        StrCat(path.string(), ": cannot be opened: ", std::generic_category().message(errno)));
  struct stat opened = {};
  if (::fstat(fd_, &opened) != 0 || !S_ISREG(opened.st_mode)) {
    ::close(std::exchange(fd_, -1));
    throw Error(StrCat(path.string(), ": is ", S_ISDIR(opened.st_mode) ? "a directory" : "no file",
                       ", expected an HDF5 file"));
  }
  // Without locks a reader still has the time that a writer gives to all.
  Lock(fd_, Range(F_RDLCK, kReaderByte, 1));
}

ReaderMark::~ReaderMark() {
  if (fd_ >= 0) ::close(fd_);
}

bool ReaderMark::IsOn(const std::filesystem::path& path) const { return IsOpenAs(path, fd_); }

bool IsBeingRead(int fd) {
  struct flock mark = Range(F_WRLCK, kReaderByte, 1);
  return ::fcntl(fd, F_OFD_GETLK, &mark) == 0 && mark.l_type != F_UNLCK;
}

FileToReplace::FileToReplace(const std::filesystem::path& path, const OutputKind& kind) {
  const auto fail = [&](const std::string& why) {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    throw Error(StrCat(path.string(), ": ", why));
  };
  // Whoever held the lock may have replaced the file in the meantime: then this is not it.
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (const std::string what = OtherThanAFile(path); !what.empty())
      fail(StrCat("is ", what, ", which is never replaced; name a file"));
    fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd_ < 0 && (errno == ENOENT || errno == ENOTDIR)) return;
    if (fd_ < 0) fail(StrCat("cannot be replaced: ", std::generic_category().message(errno)));
    if (Lock(fd_, Range(F_WRLCK, 0, kReaderByte)) == WriterLock::kTaken)
      fail(
          "another job is writing it (or, on a network file system, it is being read); name "
          "another output or wait for that job to end");
    if (IsOpenAs(path, fd_)) {
      if (!IsOfKind(fd_, kind.signature))
        fail(StrCat("is not ", kind.name,
                    ", and nothing else is replaced; name another output, or remove it"));
      return;
    }
    ::close(std::exchange(fd_, -1));
  }
  fail("is replaced all the time by others; name another output");
}

FileToReplace::~FileToReplace() {
  if (fd_ >= 0) ::close(fd_);
}

void RequireReplaceable(const std::filesystem::path& path, bool overwrite, const OutputKind& kind) {
  std::error_code error;
  if (!overwrite && std::filesystem::is_regular_file(std::filesystem::symlink_status(path, error)))
    throw Error(StrCat(path.string(),
                       ": exists already; name another file, or say --overwrite to replace it"));
  const FileToReplace asks_only(path, kind);
}

}  // namespace rollcast
