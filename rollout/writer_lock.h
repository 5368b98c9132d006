// Keeps two processes from writing one file, and a writer from what is being read.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

namespace rollcast {

/// A writer holds a shared advisory lock on its file, so that readers that lock what they read
/// (HDF5's library does; on NFS the kernel turns flock into the kind used here) are not kept out;
/// whoever wants to replace the file needs it for himself. The locks belong to the open file
/// (F_OFD_SETLK) and end with it, however the process ends.
enum class WriterLock { kHeld, kTaken, kUnsupported };

/// Marks the file open in `fd` (for reading and writing) as being written. kHeld, or kUnsupported
/// where the file system has no locks. REQUIRES: nobody else has it open yet.
WriterLock HoldAsWriter(int fd);

/// Marks a file as being read as long as it lives. Keeps nobody from writing or replacing it: it is
/// what IsBeingRead sees. Does nothing where the file system has no locks. Move-only.
class ReaderMark {
 public:
  ReaderMark() = default;
  /// Throws Error when `path` cannot be opened for reading or is no regular file.
  explicit ReaderMark(const std::filesystem::path& path);
  ReaderMark(ReaderMark&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ReaderMark& operator=(ReaderMark&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ReaderMark();

  /// The marked file, open for reading.
  int fd() const { return fd_; }
  /// Whether `path` still names the marked file.
  bool IsOn(const std::filesystem::path& path) const;

 private:
  int fd_ = -1;
};

/// Whether another open file has a ReaderMark on the file open in `fd`; false where the file system
/// has no locks.
bool IsBeingRead(int fd);

/// An existing file that is to be replaced, locked against others that want the same.
class FileToReplace {
 public:
  /// Throws Error when another process writes `path`, or when it is write-protected.
  explicit FileToReplace(const std::filesystem::path& path);
  ~FileToReplace();
  FileToReplace(const FileToReplace&) = delete;
  FileToReplace& operator=(const FileToReplace&) = delete;

  /// False when there is no such file.
  bool exists() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace rollcast
