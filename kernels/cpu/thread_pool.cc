#include "kernels/cpu/thread_pool.h"

#include "kernels/check.h"

namespace rollcast::cpu {

namespace {

// About 50 microseconds: longer than the gap between two ops of a step, shorter than what the
// other processes of the machine would notice.
constexpr int kSpins = 2000;

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Returns when `word` is no longer `old`.
void WaitWhile(const std::atomic<uint32_t>& word, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != old) return;
    Relax();
  }
  word.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  RC_CHECK_GE(threads, 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int count, const void* fn, Call call) {
  RC_CHECK_LE(count, kMaxParts);
  const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
  fn_.store(fn, std::memory_order_relaxed);
  call_.store(call, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  ticket_.store(static_cast<uint64_t>(round) << 32 | static_cast<uint64_t>(count) << 16,
                std::memory_order_release);
  round_.store(round, std::memory_order_release);
  round_.notify_all();
  Work(round, 0);
  for (;;) {
    const uint32_t done = done_.load(std::memory_order_acquire);
    if (done == static_cast<uint32_t>(count)) return;
    WaitWhile(done_, done);
  }
}

void ThreadPool::Work(uint64_t round, int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t next = ticket & 0xffff, count = ticket >> 16 & 0xffff;
    if (ticket >> 32 != round || next == count) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire))
      continue;
    // Until this part is counted as done, Run does not return and the function stays.
    call_.load(std::memory_order_relaxed)(fn_.load(std::memory_order_relaxed),
                                          static_cast<int>(next), thread);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == count && thread != 0)
      done_.notify_one();
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  for (;;) {
    WaitWhile(round_, seen);
    seen = round_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    Work(seen, thread);
  }
}

}  // namespace rollcast::cpu
