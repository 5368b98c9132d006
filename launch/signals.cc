#include "launch/signals.h"

#include <atomic>
#include <csignal>

namespace rollcast {

namespace {

std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "written by a signal handler");

void OnSignal(int signal) {
  stop_signal.store(signal, std::memory_order_relaxed);
  std::signal(signal, SIG_DFL);
}

}  // namespace

Stopped::Stopped(int signal) : Error(StrCat("stopped by ", SignalName(signal))) {}

void CatchSignals() {
  stop_signal.store(0, std::memory_order_relaxed);
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  std::signal(SIGPIPE, SIG_IGN);
}

int StopSignal() { return stop_signal.load(std::memory_order_relaxed); }

const char* SignalName(int signal) { return signal == SIGINT ? "SIGINT" : "SIGTERM"; }

}  // namespace rollcast
