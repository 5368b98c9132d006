#include "trainer_bridge/communicator.h"

#include <algorithm>
#include <thread>

namespace rollcast {

std::optional<Message> Communicator::Poll() {
  if (!deferred_.empty()) {
    Message message = std::move(deferred_.front());
    deferred_.pop_front();
    return message;
  }
  return PollTransport();
}

void Backoff::Wait() {
  constexpr int kYields = 1000;
  if (rounds_ < kYields) {
    std::this_thread::yield();
  } else {
    // 20 us at first; doubles every 32 rounds up to 640 us.
    const int doublings = std::min((rounds_ - kYields) / 32, 5);
    std::this_thread::sleep_for(std::chrono::microseconds(20 << doublings));
  }
  ++rounds_;
}

}  // namespace rollcast
