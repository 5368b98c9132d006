// The prompts of a job, from [rollout] to what the ranks take.
#pragma once

#include <vector>

#include "launch/config.h"
#include "rollout/prompt_source.h"
#include "trainer_bridge/trainer_client.h"

namespace rollcast {

/// Reads rollout.prompts; chat messages are rendered with the template of the model's tokenizer.
/// Throws Error with file and line.
std::vector<Prompt> LoadPrompts(const Config& config, int vocab_size);

/// What is submitted for `prompt`.
PromptGroup ToGroup(const Prompt& prompt, const RolloutSettings& settings);

}  // namespace rollcast
