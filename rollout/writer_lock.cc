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

WriterLock Lock(int fd, short type) {
  struct flock whole = {};
  whole.l_type = type;
  whole.l_whence = SEEK_SET;  // from 0 to 0: all of it, however it grows
  int result;
  while ((result = ::fcntl(fd, F_OFD_SETLK, &whole)) != 0 && errno == EINTR) {
  }
  if (result == 0) return WriterLock::kHeld;
  return errno == EAGAIN || errno == EACCES ? WriterLock::kTaken : WriterLock::kUnsupported;
}

}  // namespace

WriterLock HoldAsWriter(int fd) { return Lock(fd, F_RDLCK); }

FileToReplace::FileToReplace(const std::filesystem::path& path) {
  const auto fail = [&](const std::string& why) {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    throw Error(StrCat(path.string(), ": ", why));
  };
  // Whoever held the lock may have replaced the file in the meantime: then this is not it.
  for (int attempt = 0; attempt < 100; ++attempt) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0 && errno == ENOENT) return;
    if (fd_ < 0) fail(StrCat("cannot be replaced: ", std::generic_category().message(errno)));
    if (Lock(fd_, F_WRLCK) == WriterLock::kTaken)
      fail(
          "another job is writing it (or, on a network file system, it is being read); name "
          "another output or wait for that job to end");
    struct stat opened = {}, named = {};
    if (::fstat(fd_, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev)
      return;
    ::close(std::exchange(fd_, -1));
  }
  fail("is replaced all the time by others; name another output");
}

FileToReplace::~FileToReplace() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace rollcast
