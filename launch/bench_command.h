// Benchmarks on random weights at real model shapes, or on a model folder.
#pragma once

#include <string>

#include "launch/config.h"

namespace rollcast {

struct BenchOptions {
  std::string what;  // decode, prefill, rollout, sync
  std::string shape = "qwen2.5-0.5b";
  std::string model;  // a Hugging Face folder whose weights are used instead of random ones
  int batch = 1;
  int context = 1024;  // decode: mean context of the timed steps; prefill: tokens of a prompt
  int steps = 64;      // decode: timed steps a repeat
  int repeats = 5;
  int requests = 256;  // rollout
  int updates = 10;    // sync
  double temperature = 1.0;
};

/// Prints one JSON line a benchmark on standard output; returns the exit status.
int RunBench(const Config& config, const BenchOptions& options);

}  // namespace rollcast
