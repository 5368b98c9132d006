#include "launch/model_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <system_error>

#include "engine/mapped_file.h"
#include "kernels/check.h"
#include "launch/output_path.h"

namespace rollcast {

namespace fs = std::filesystem;

void RequireModelFolderName(const fs::path& path, bool replace) {
  RequireName(path);
  std::error_code error;
  if (!fs::exists(path, error)) return;
  const bool is_folder = fs::is_directory(path, error);
  if (is_folder && fs::is_empty(path, error)) return;
  if (!replace) throw Error(StrCat(path.string(), ": exists already and is not an empty folder"));
  if (!is_folder || !fs::exists(path / "config.json", error))
    throw Error(StrCat(path.string(), ": is no model folder, and is not replaced"));
}

ModelFolderWriter::ModelFolderWriter(fs::path path, bool replace)
    : path_(path.has_filename() ? std::move(path) : path.parent_path()), replace_(replace) {
  if (path_.empty()) throw Error("the output folder has no name");
  RequireModelFolderName(path_, replace_);
  std::error_code error;
  staging_ = path_;
  staging_ += StrCat(".", getpid(), ".part");
  fs::create_directories(staging_, error);
  if (error) throw Error(StrCat(path_.string(), ": cannot be created: ", error.message()));
}

ModelFolderWriter::~ModelFolderWriter() {
  std::error_code ignored;
  if (!staging_.empty()) fs::remove_all(staging_, ignored);
}

void ModelFolderWriter::Write(std::string_view name, std::string_view text) {
  WriteTextFile(staging_ / name, text);
}

void ModelFolderWriter::Commit() {
  std::error_code error;
  if (replace_ && fs::exists(path_, error)) {
    // Both names change at once, so that there is a whole folder at any time; then the old one
    // goes.
    if (::renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
      fs::remove_all(staging_, error);
      staging_.clear();
      return;
    }
    // Not every file system has that; then there is none for a moment.
    fs::path old = staging_;
    old += ".old";
    fs::rename(path_, old, error);
    if (!error) fs::rename(staging_, path_, error);
    if (error) throw Error(StrCat(path_.string(), ": cannot be replaced: ", error.message()));
    fs::remove_all(old, error);
    staging_.clear();
    return;
  }
  fs::rename(staging_, path_, error);  // replaces an empty folder
  if (error) throw Error(StrCat(path_.string(), ": cannot rename: ", error.message()));
  staging_.clear();
}

}  // namespace rollcast
