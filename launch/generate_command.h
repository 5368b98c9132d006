// `rollcast generate`: completions of a prompt file, without a trainer.
#pragma once

#include "launch/config.h"

namespace rollcast {

/// One process, or as many ranks as mpirun started. Every prompt of rollout.prompts is completed
/// group_size times, scored, and written to rollout.output. Returns the exit status: not 0 when a
/// completion was refused or failed; the others are in the file all the same.
int RunGenerate(const Config& config);

}  // namespace rollcast
