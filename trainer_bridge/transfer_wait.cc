#include "trainer_bridge/transfer_wait.h"

#include <chrono>
#include <thread>

namespace rollcast {

namespace {
constexpr auto kServicePeriod = std::chrono::milliseconds(2);
// A look asks the device's driver, whose locks the engine's own thread needs, so looks are rare:
// far apart for the driver, close for a chunk.
constexpr auto kPause = std::chrono::microseconds(50);
}  // namespace

bool TransferWait::Next(bool moved) {
  const auto now = Clock::now();
  if (service_ && now >= next_service_) {
    service_();
    next_service_ = now + kServicePeriod;
  }
  if (now >= deadline_) return false;
  if (!moved) std::this_thread::sleep_for(kPause);
  return true;
}

}  // namespace rollcast
