// The threads of one CPU backend.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace rollcast::cpu {

/// Runs the parts of an op on a fixed set of threads, the caller included. Parts are claimed one by
/// one, so a thread that the machine does not run at the moment delays nobody; which thread takes a
/// part must not change its result. One ParallelFor at a time.
class ThreadPool {
 public:
  /// `threads` >= 1, the caller included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls fn(part, thread) once for each part in [0, count), count <= kMaxParts; `thread` in
  /// [0, num_threads) differs between calls that run at the same time. Returns when all are done.
  /// `fn` must not throw.
  template <class Fn>
  void ParallelFor(int count, const Fn& fn) {
    if (count <= 1 || workers_.empty()) {
      for (int i = 0; i < count; ++i) fn(i, 0);
      return;
    }
    Run(count, &fn, [](const void* f, int part, int thread) noexcept {
      (*static_cast<const Fn*>(f))(part, thread);
    });
  }

  static constexpr int kMaxParts = 65535;

 private:
  using Call = void (*)(const void* fn, int part, int thread) noexcept;

  void Run(int count, const void* fn, Call call);
  void Work(uint64_t round, int thread);
  void WorkerLoop(int thread);

  std::vector<std::thread> workers_;
  // Round (32 bits), number of parts (16), next part (16): one word, so that a claim that
  // succeeds belongs to the round whose function is set.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> round_{0};  // what idle workers wait on
  std::atomic<const void*> fn_{nullptr};
  std::atomic<Call> call_{nullptr};
  std::atomic<bool> stop_{false};
};

}  // namespace rollcast::cpu
