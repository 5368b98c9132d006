#include "launch/model_folder.h"

#include <unistd.h>

#include <system_error>

#include "engine/mapped_file.h"
#include "kernels/check.h"

namespace rollcast {

namespace fs = std::filesystem;

ModelFolderWriter::ModelFolderWriter(fs::path path)
    : path_(path.has_filename() ? std::move(path) : path.parent_path()) {
  if (path_.empty()) throw Error("the output folder has no name");
  std::error_code error;
  if (fs::exists(path_, error) && !(fs::is_directory(path_, error) && fs::is_empty(path_, error)))
    throw Error(StrCat(path_.string(), ": exists already and is not an empty folder"));
  staging_ = path_;
  staging_ += StrCat(".", getpid(), ".part");
  fs::create_directories(staging_, error);
  if (error) throw Error(StrCat(path_.string(), ": cannot create: ", error.message()));
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
  fs::rename(staging_, path_, error);  // replaces an empty folder
  if (error) throw Error(StrCat(path_.string(), ": cannot rename: ", error.message()));
  staging_.clear();
}

}  // namespace rollcast
