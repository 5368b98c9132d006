#include "launch/signals.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace rollcast {

namespace {

// timeout(1), supervisors and terminals may deliver one wish to end to the process and to its
// group.
constexpr int64_t kSameSignal_ns = 250'000'000;

std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "written by a signal handler");

// When it came, on the monotonic clock; 0 = it has not.
std::atomic<int64_t> stop_ns{0};
static_assert(std::atomic<int64_t>::is_always_lock_free, "used by a signal handler");

int64_t Now() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

std::atomic<bool> second_ends{true};
static_assert(std::atomic<bool>::is_always_lock_free, "read by a signal handler");

void OnSignal(int signal) {
  const int64_t now = Now();
  int64_t first = 0;
  if (stop_ns.compare_exchange_strong(first, now, std::memory_order_relaxed)) {
    stop_signal.store(signal, std::memory_order_relaxed);
    return;
  }
  if (!second_ends.load(std::memory_order_relaxed) || now - first < kSameSignal_ns) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

Stopped::Stopped(int signal) : Error(StrCat("stopped by ", SignalName(signal))) {}

void CatchSignals(SecondSignal second) {
  second_ends.store(second == SecondSignal::kEndsProcess, std::memory_order_relaxed);
  stop_ns.store(0, std::memory_order_relaxed);
  stop_signal.store(0, std::memory_order_relaxed);
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  std::signal(SIGPIPE, SIG_IGN);
}

int StopSignal() { return stop_signal.load(std::memory_order_relaxed); }

const char* SignalName(int signal) { return signal == SIGINT ? "SIGINT" : "SIGTERM"; }

}  // namespace rollcast
