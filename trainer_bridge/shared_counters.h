// Counters in memory that the processes of one host share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace rollcast {

/// kCount counters in a POSIX shared memory object, 0 at first. Each is for one writer; a store
/// with release and a load with acquire order what was written before it. Thread-safe.
class SharedCounters {
 public:
  static constexpr int kCount = 1024;

  /// A new object under a name of its own. Throws Error.
  static std::shared_ptr<SharedCounters> Create();
  /// The object that another rank of this host has created. Throws Error when it is not there.
  static std::shared_ptr<SharedCounters> Open(const std::string& name);
  /// Unlinks the name if this created it.
  ~SharedCounters();
  SharedCounters(const SharedCounters&) = delete;
  SharedCounters& operator=(const SharedCounters&) = delete;

  const std::string& name() const { return name_; }
  std::atomic<uint64_t>& operator[](int i);
  /// Takes the name away: the memory lives as long as somebody has it open, and nothing is left
  /// behind by a process that is killed. Only on the object that Create returned.
  void Unlink() noexcept;

 private:
  struct Cell {
    alignas(64) std::atomic<uint64_t> value;  // a cache line each
  };
  SharedCounters(std::string name, bool created);

  const std::string name_;
  const bool created_;
  std::atomic<bool> linked_;
  Cell* cells_ = nullptr;
};

}  // namespace rollcast
