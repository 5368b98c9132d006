// The prompts of a job, from [rollout] to what the ranks take.
#pragma once

#include <vector>

#include "launch/config.h"
#include "rollout/prompt_source.h"
#include "trainer_bridge/trainer_client.h"

namespace rollcast {

/// Reads rollout.prompts; chat messages are rendered with the template of the model's tokenizer.
/// The run's seed is that of rows whose sampling names none. Throws Error with file and line, or
/// for [sampling] itself when it does not suit a model of `vocab_size` tokens.
std::vector<Prompt> LoadPrompts(const Config& config, int vocab_size);

/// What is submitted for `prompt`.
PromptGroup ToGroup(const Prompt& prompt, const RolloutSettings& settings);

}  // namespace rollcast
