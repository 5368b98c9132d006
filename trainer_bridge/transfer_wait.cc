#include "trainer_bridge/transfer_wait.h"

namespace rollcast {

namespace {
constexpr auto kServicePeriod = std::chrono::milliseconds(2);
}  // namespace

bool TransferWait::Next(bool moved) {
  const auto now = Clock::now();
  if (service_ && now >= next_service_) {
    service_();
    next_service_ = now + kServicePeriod;
  }
  if (now >= deadline_) return false;
  if (moved)
    backoff_.Reset();
  else
    backoff_.Wait();
  return true;
}

}  // namespace rollcast
