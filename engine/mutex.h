// A mutex that Clang's thread-safety analysis understands
// (https://clang.llvm.org/docs/ThreadSafetyAnalysis.html); plain std::mutex elsewhere.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define RC_TSA(x) __attribute__((x))
#else
#define RC_TSA(x)
#endif
#define RC_CAPABILITY(x) RC_TSA(capability(x))
#define RC_SCOPED_CAPABILITY RC_TSA(scoped_lockable)
#define RC_GUARDED_BY(x) RC_TSA(guarded_by(x))
#define RC_REQUIRES(...) RC_TSA(requires_capability(__VA_ARGS__))
#define RC_EXCLUDES(...) RC_TSA(locks_excluded(__VA_ARGS__))
#define RC_ACQUIRE(...) RC_TSA(acquire_capability(__VA_ARGS__))
#define RC_RELEASE(...) RC_TSA(release_capability(__VA_ARGS__))
#define RC_NO_THREAD_SAFETY_ANALYSIS RC_TSA(no_thread_safety_analysis)

namespace rollcast {

class RC_CAPABILITY("mutex") Mutex {
 public:
  void Lock() RC_ACQUIRE() { mutex_.lock(); }
  void Unlock() RC_RELEASE() { mutex_.unlock(); }
  /// Tells the analysis that the caller holds the mutex by other means (a SchedulerLock).
  void AssertHeld() const RC_TSA(assert_capability(this)) {}

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class RC_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) RC_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() RC_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// A MutexLock that counts itself in `waiters` until it has the mutex, so that a thread which takes
/// the mutex in a loop can stand back: std::mutex is not fair.
class RC_SCOPED_CAPABILITY WaitingLock {
 public:
  WaitingLock(Mutex& mutex, std::atomic<int>& waiters) RC_ACQUIRE(mutex) : mutex_(mutex) {
    waiters.fetch_add(1, std::memory_order_acq_rel);
    mutex_.Lock();
    waiters.fetch_sub(1, std::memory_order_acq_rel);
  }
  ~WaitingLock() RC_RELEASE() { mutex_.Unlock(); }
  WaitingLock(const WaitingLock&) = delete;
  WaitingLock& operator=(const WaitingLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Waits may wake spuriously: call them in a loop over the condition.
class CondVar {
 public:
  void Wait(Mutex& mutex) RC_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  /// False when `deadline` has passed.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline) RC_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace rollcast
