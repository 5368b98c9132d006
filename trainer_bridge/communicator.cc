#include "trainer_bridge/communicator.h"

#if defined(__linux__)
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <thread>

namespace rollcast {

namespace {

#if defined(__linux__)
/// The kernel's struct sched_attr in its first version (sched_setattr(2)), which headers of the C
/// library and of the kernel define in ways that exclude each other.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes), policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0, deadline = 0, period = 0;  // ns
};
static_assert(sizeof(SchedulingAttributes) == 48);
constexpr uint64_t kResetOnFork = 1;  // SCHED_FLAG_RESET_ON_FORK
#endif

/// Asks the kernel to let this thread, and none that it starts, run soon after a sleep has ended,
/// also on a core on which others compute. What it does not know it refuses, which does no harm.
bool WakePromptly() {
#if defined(__linux__)
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; it may else add 50 us to every sleep
  // From Linux 6.12 on a thread that wakes goes ahead of one that runs only when it asks for
  // shorter slices of time; before that it usually does anyhow.
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0 &&
      attributes.policy == SCHED_OTHER) {
    attributes.runtime = 100'000;
    attributes.flags |= kResetOnFork;
    syscall(SYS_sched_setattr, 0, &attributes, 0);
  }
#endif
  return true;
}

}  // namespace

std::optional<Message> Communicator::Poll() {
  if (!deferred_.empty()) {
    Message message = std::move(deferred_.front());
    deferred_.pop_front();
    return message;
  }
  return PollTransport();
}

void Backoff::Wait() {
  // Where ranks share cores a yield can cost a whole slice of the scheduler's time, milliseconds
  // for each piece of a transfer, while a thread that wakes from a sleep gets its turn at once. So:
  // looks without a pause for about as long as an answer takes, then sleeps.
  constexpr auto kLooks = std::chrono::microseconds(100);
  [[maybe_unused]] thread_local const bool prompt = WakePromptly();
  if (sleeps_ == 0) {
    const auto now = Clock::now();
    if (!first_.has_value()) first_ = now;
    if (now - *first_ < kLooks) return;
  }
  // 20 us at first; doubles every 64 sleeps up to 640 us.
  std::this_thread::sleep_for(std::chrono::microseconds(20 << std::min(sleeps_ / 64, 5)));
  ++sleeps_;
}

}  // namespace rollcast
