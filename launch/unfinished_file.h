// An output that appears complete or not at all.
#pragma once

#include <array>
#include <csignal>
#include <filesystem>

namespace rollcast {

/// A name beside an output's own, for what is written until it is complete. The file is removed
/// unless Commit has renamed it: by the destructor, and when SIGHUP, SIGINT, SIGPIPE or SIGTERM
/// ends the process, which they do at once (one that is ignored, as under nohup, stays ignored).
/// REQUIRES: a process has one at a time. Made and destroyed on one thread.
class UnfinishedFile {
 public:
  /// Creates nothing: `written` is for the caller to create.
  explicit UnfinishedFile(const std::filesystem::path& path);
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  /// What to write to.
  const std::filesystem::path& written() const { return written_; }
  /// Renames it to the output. Throws Error when that fails. REQUIRES: it is closed.
  void Commit();

 private:
  static constexpr std::array kSignals = {SIGHUP, SIGINT, SIGPIPE, SIGTERM};

  const std::filesystem::path path_;
  std::filesystem::path written_;
  std::array<void (*)(int), kSignals.size()> before_{};  // what the signals did
};

}  // namespace rollcast
