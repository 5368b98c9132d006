// Weight updates between ranks while they decode, timed.
#pragma once

#include "launch/bench_command.h"
#include "launch/config.h"

namespace rollcast {

/// Under mpirun with at least two ranks: rank 0 is the trainer and prints one JSON line, the others
/// decode. Returns the exit status.
int RunBenchSync(const Config& config, const BenchOptions& options);

}  // namespace rollcast
