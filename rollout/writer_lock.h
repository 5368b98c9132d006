// What an output may replace, how two processes are kept from writing one file, and a writer from
// what is being read.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace rollcast {

/// A writer holds a shared advisory lock on its file, so that readers that lock what they read
/// (HDF5's library does; on NFS the kernel turns flock into the kind used here) are not kept out;
/// whoever wants to replace the file needs it for himself. The locks belong to the open file
/// (F_OFD_SETLK) and end with it, however the process ends.
enum class WriterLock { kHeld, kTaken, kUnsupported };

/// Whether `path` names the file open in `fd`; false for an `fd` of -1.
bool IsOpenAs(const std::filesystem::path& path, int fd);

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

/// How an output of one kind is told from a file that somebody else has made.
struct OutputKind {
  const char* name;            // "an HDF5 file"
  std::string_view signature;  // its first bytes
};

inline constexpr OutputKind kHdf5Output{"an HDF5 file", "\x89HDF\r\n\x1a\n"};

/// An existing file that is to be replaced, locked against others that want the same.
class FileToReplace {
 public:
  /// Throws Error when `path` is no regular file (a symbolic link, too: renaming would replace the
  /// link), when it is neither empty nor of `kind`, when another process writes it, or when it is
  /// write-protected.
  FileToReplace(const std::filesystem::path& path, const OutputKind& kind);
  ~FileToReplace();
  FileToReplace(const FileToReplace&) = delete;
  FileToReplace& operator=(const FileToReplace&) = delete;

  /// False when there is no such file.
  bool exists() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Throws Error where an output of `kind` cannot be put at `path`: something other than a file is
/// there, `overwrite` is false and a file is, or FileToReplace refuses it. Opens nothing that is
/// not a regular file.
void RequireReplaceable(const std::filesystem::path& path, bool overwrite, const OutputKind& kind);

}  // namespace rollcast
