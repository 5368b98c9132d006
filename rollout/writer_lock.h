// Keeps two processes from writing one file.
#pragma once

#include <filesystem>
#include <string>

namespace rollcast {

/// A writer holds a shared advisory lock on its file, so that readers that lock what they read
/// (HDF5's library does; on NFS the kernel turns flock into the kind used here) are not kept out;
/// whoever wants to replace the file needs it for himself. The locks belong to the open file
/// (F_OFD_SETLK) and end with it, however the process ends.
enum class WriterLock { kHeld, kTaken, kUnsupported };

/// Marks the file open in `fd` (for reading and writing) as being written. kHeld, or kUnsupported
/// where the file system has no locks. REQUIRES: nobody else has it open yet.
WriterLock HoldAsWriter(int fd);

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
