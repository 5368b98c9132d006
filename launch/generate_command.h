// `rollcast generate`: completions of a prompt file, without a trainer.
#pragma once

#include <cstdint>
#include <string>

#include "launch/config.h"
#include "rollout/trajectory.h"

namespace rollcast {

/// One process, or as many ranks as mpirun started. Every prompt of rollout.prompts is completed
/// group_size times, scored, and written to rollout.output. Returns the exit status: not 0 when a
/// completion was refused or failed; the others are in the file all the same.
/// The first `show` completions, in the order of prompts and samples, are printed at the end.
int RunGenerate(const Config& config, uint64_t show);

/// One line for a reader: prompt id, sample when the group has several, outcome when it is not the
/// good one, reward where there is one and `with_reward`, and the beginning of the text with line
/// ends and other control characters escaped.
std::string Preview(const Trajectory& trajectory, bool with_reward);

}  // namespace rollcast
