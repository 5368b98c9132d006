#include "launch/signals.h"

#include <atomic>
#include <csignal>

namespace rollcast {

namespace {

std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "written by a signal handler");

std::atomic<bool> second_ends{true};
static_assert(std::atomic<bool>::is_always_lock_free, "read by a signal handler");

void OnSignal(int signal) {
  int none = 0;
  stop_signal.compare_exchange_strong(none, signal, std::memory_order_relaxed);
  if (second_ends.load(std::memory_order_relaxed)) std::signal(signal, SIG_DFL);
}

}  // namespace

Stopped::Stopped(int signal) : Error(StrCat("stopped by ", SignalName(signal))) {}

void CatchSignals(SecondSignal second) {
  second_ends.store(second == SecondSignal::kEndsProcess, std::memory_order_relaxed);
  stop_signal.store(0, std::memory_order_relaxed);
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  std::signal(SIGPIPE, SIG_IGN);
}

int StopSignal() { return stop_signal.load(std::memory_order_relaxed); }

const char* SignalName(int signal) { return signal == SIGINT ? "SIGINT" : "SIGTERM"; }

}  // namespace rollcast
