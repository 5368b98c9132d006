// A limit on a call that cannot be given one.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace rollcast {

/// While it lives, `expired` is called on a thread of its own when `limit` has passed; once.
class Watchdog {
 public:
  Watchdog(std::chrono::duration<double> limit, std::function<void()> expired);
  /// Waits for an `expired` that has begun.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace rollcast
