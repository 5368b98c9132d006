// Reading what a user names as an input.
#pragma once

#include <filesystem>
#include <istream>
#include <memory>

namespace rollcast {

/// `path` for reading, byte by byte; "-" is the standard input, from where it stands. A stream that
/// cannot go wrong silently: throws Error naming the path and the system's reason when it cannot be
/// opened (which a folder cannot), and from any read that fails. Used from one thread.
class InputStream : public std::istream {
 public:
  explicit InputStream(const std::filesystem::path& path);

 private:
  std::unique_ptr<std::streambuf> buffer_;
};

}  // namespace rollcast
