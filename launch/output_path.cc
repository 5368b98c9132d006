#include "launch/output_path.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/check.h"
#include "rollout/writer_lock.h"

namespace rollcast {

void RequireName(const std::filesystem::path& path) {
  if (path == "-")
    throw Error("-: this output cannot go to the standard output: name another (./- is one, too)");
}

void PrepareFolder(const std::filesystem::path& path) {
  std::error_code error;
  RequireName(path);
  if (!path.has_filename() || std::filesystem::is_directory(path, error))
    throw Error(StrCat(path.string(), ": is a folder"));
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(StrCat(path.string(), ": cannot be created: ", error.message()));
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    throw Error(StrCat(path.string(), ": cannot be created: ", std::strerror(errno)));
}

void PrepareOutput(const std::filesystem::path& path, bool overwrite,
                   const std::filesystem::path& input, const OutputKind& kind) {
  std::error_code error;
  if (!input.empty() && std::filesystem::equivalent(path, input, error))
    throw Error(StrCat(path.string(), ": is the input as well; name another output"));
  if (path.has_filename()) RequireReplaceable(path, overwrite, kind);
  PrepareFolder(path);
}

}  // namespace rollcast
