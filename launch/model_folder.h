// A Hugging Face model folder that appears whole or not at all.
#pragma once

#include <filesystem>
#include <string_view>

namespace rollcast {

/// Throws Error when `path` exists and is not an empty folder, nor, with `replace`, a model folder:
/// one that has a config.json.
void RequireModelFolderName(const std::filesystem::path& path, bool replace);

/// Collects files beside `path` and renames on Commit. Not thread-safe.
class ModelFolderWriter {
 public:
  /// Throws Error as RequireModelFolderName does, or when `path` cannot be written.
  explicit ModelFolderWriter(std::filesystem::path path, bool replace = false);
  ModelFolderWriter(const ModelFolderWriter&) = delete;
  ModelFolderWriter& operator=(const ModelFolderWriter&) = delete;
  ~ModelFolderWriter();  // without Commit: what was written is removed

  /// Where files go until Commit.
  const std::filesystem::path& staging() const { return staging_; }
  void Write(std::string_view name, std::string_view text);
  void Commit();

 private:
  std::filesystem::path path_, staging_;
  const bool replace_;
};

}  // namespace rollcast
