// A Hugging Face model folder that appears whole or not at all.
#pragma once

#include <filesystem>
#include <string_view>

namespace rollcast {

/// Collects files beside `path` and renames on Commit. Not thread-safe.
class ModelFolderWriter {
 public:
  /// Throws Error when `path` exists and is not an empty folder, or cannot be written.
  explicit ModelFolderWriter(std::filesystem::path path);
  ModelFolderWriter(const ModelFolderWriter&) = delete;
  ModelFolderWriter& operator=(const ModelFolderWriter&) = delete;
  ~ModelFolderWriter();  // without Commit: what was written is removed

  /// Where files go until Commit.
  const std::filesystem::path& staging() const { return staging_; }
  void Write(std::string_view name, std::string_view text);
  void Commit();

 private:
  std::filesystem::path path_, staging_;
};

}  // namespace rollcast
