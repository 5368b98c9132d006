#include "engine/input_stream.h"

#include <cerrno>
#include <cstring>

#include "kernels/check.h"

namespace rollcast {

std::ifstream OpenInput(const std::filesystem::path& path) {
  std::error_code ignored;  // opening the file finds out
  if (std::filesystem::is_directory(path, ignored))
    throw Error(StrCat(path.string(), ": is a folder, expected a file"));
  errno = 0;
  std::ifstream in(path == "-" ? "/dev/stdin" : path, std::ios::binary);
  if (!in) throw Error(StrCat(path.string(), ": cannot be opened: ", std::strerror(errno)));
  return in;
}

}  // namespace rollcast
