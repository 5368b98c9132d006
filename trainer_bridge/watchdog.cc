#include "trainer_bridge/watchdog.h"

#include <utility>

namespace rollcast {

Watchdog::Watchdog(std::chrono::duration<double> limit, std::function<void()> expired)
    : thread_([this, limit, expired = std::move(expired)] {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, limit, [this] { return done_; })) expired();
      }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace rollcast
