// Reading what a user names as an input.
#pragma once

#include <filesystem>
#include <istream>
#include <memory>

namespace rollcast {

/// Whether a folder has an entry of that name. A link that leads nowhere is one, and opening it
/// says so: what is meant to be there is not taken for absent. Throws Error naming the path and the
/// system's reason when that cannot be found out.
bool Exists(const std::filesystem::path& path);

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
