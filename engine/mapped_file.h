// Read-only view of a whole file, and a writer that leaves either the whole file or none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace rollcast {

/// Maps a file for reading; move-only. The bytes are valid while the object lives. Thread-safe to
/// read.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws Error naming the file when it cannot be opened or is not a regular file.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Reads a small text file. Throws Error naming the file.
std::string ReadTextFile(const std::filesystem::path& path);

/// Writes beside `path` and renames on Commit, so that a failure (full disk, kill) never leaves
/// half a file under the name. Not thread-safe.
class AtomicFileWriter {
 public:
  /// Throws Error naming the path when it cannot be written.
  explicit AtomicFileWriter(std::filesystem::path path);
  AtomicFileWriter(const AtomicFileWriter&) = delete;
  AtomicFileWriter& operator=(const AtomicFileWriter&) = delete;
  ~AtomicFileWriter();  // without Commit: the temporary is removed

  void Write(const void* data, size_t bytes);
  void Write(std::string_view text) { Write(text.data(), text.size()); }
  void Commit();

 private:
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
};

/// Writes `text` to `path` as AtomicFileWriter does.
void WriteTextFile(const std::filesystem::path& path, std::string_view text);

}  // namespace rollcast
