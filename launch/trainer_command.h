// `rollcast trainer`: the reference trainer, GRPO on the final norm and the output head. It is an
// example of what stands on the other side of TrainerClient, no part of the engine.
#pragma once

#include "launch/config.h"

namespace rollcast {

/// Trains for trainer.updates updates beside the rollout ranks of the same world. Returns the exit
/// status: not 0 when the job failed or the reward did not rise by trainer.min_reward_gain.
int RunTrainer(const Config& config);

}  // namespace rollcast
