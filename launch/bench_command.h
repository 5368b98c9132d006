// Benchmarks on random weights at real model shapes.
#pragma once

#include <string>

#include "launch/config.h"

namespace rollcast {

struct BenchOptions {
  std::string what;  // decode, prefill, rollout
  std::string shape = "qwen2.5-0.5b";
  int batch = 1;
  int context = 1024;  // decode: mean context of the timed steps; prefill: tokens of a prompt
  int steps = 64;      // decode: timed steps a repeat
  int repeats = 5;
  int requests = 256;  // rollout
  double temperature = 1.0;
};

/// Prints one JSON line a benchmark on standard output; returns the exit status.
int RunBench(const Config& config, const BenchOptions& options);

}  // namespace rollcast
