#include "launch/unfinished_file.h"

#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstring>

#include "kernels/check.h"

namespace rollcast {

namespace {

// For the signal handler, which may not allocate.
char unfinished[PATH_MAX];
std::atomic<bool> there_is_one{false};
static_assert(std::atomic<bool>::is_always_lock_free, "read by a signal handler");

void RemoveAndEnd(int signal) {
  if (there_is_one.load(std::memory_order_acquire)) ::unlink(unfinished);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

UnfinishedFile::UnfinishedFile(const std::filesystem::path& path) : path_(path), written_(path) {
  RC_CHECK(!there_is_one, "two unfinished files");
  written_ += StrCat(".tmp.", getpid());
  if (written_.native().size() >= sizeof(unfinished))
    throw Error(StrCat(path_.string(), ": cannot be created: the name is too long"));
  std::strcpy(unfinished, written_.c_str());
  there_is_one.store(true, std::memory_order_release);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    before_[i] = std::signal(kSignals[i], RemoveAndEnd);
    if (before_[i] == SIG_IGN) std::signal(kSignals[i], SIG_IGN);
  }
}

UnfinishedFile::~UnfinishedFile() {
  std::error_code ignored;
  std::filesystem::remove(written_, ignored);  // there is none after Commit
  for (size_t i = 0; i < kSignals.size(); ++i) std::signal(kSignals[i], before_[i]);
  there_is_one.store(false, std::memory_order_release);
}

void UnfinishedFile::Commit() {
  std::error_code error;
  std::filesystem::rename(written_, path_, error);
  if (error) throw Error(StrCat(path_.string(), ": cannot be written: ", error.message()));
}

}  // namespace rollcast
