// The prompts of a job, from [rollout] to what the ranks take.
#pragma once

#include <filesystem>
#include <functional>
#include <istream>
#include <optional>
#include <string>
#include <vector>

#include "launch/config.h"
#include "rollout/chat_template.h"
#include "rollout/prompt_source.h"
#include "trainer_bridge/trainer_client.h"

namespace rollcast {

/// Reads rows of prompts; chat messages are rendered with the template of the model's tokenizer.
class PromptReader {
 public:
  /// `vocab_size` > 0: token ids must be below. Without a template it can still read all rows that
  /// have no messages.
  PromptReader(const Config& config, int vocab_size);

  /// Rows that do not say otherwise are sampled by `sampling`, its seed included. Throws Error with
  /// `name` and line.
  std::vector<Prompt> Read(std::istream& in, const std::string& name,
                           const SamplingParams& sampling) const;
  /// The same from a file.
  std::vector<Prompt> Read(const std::filesystem::path& path, const SamplingParams& sampling) const;

 private:
  // Adds to an error about messages why there is no template.
  std::vector<Prompt> Explain(
      const SamplingParams& sampling,
      const std::function<std::vector<Prompt>(const PromptOptions&)>& read) const;

  std::optional<ChatTemplate> chat_;
  std::string why_no_chat_;
  PromptOptions options_;  // but for the template and the sampling
};

/// Reads rollout.prompts. The run's seed is that of rows whose sampling names none. Throws Error
/// with file and line, or for [sampling] itself when it does not suit a model of `vocab_size`
/// tokens.
std::vector<Prompt> LoadPrompts(const Config& config, int vocab_size);

/// What is submitted for `prompt`.
PromptGroup ToGroup(const Prompt& prompt, const RolloutSettings& settings);

}  // namespace rollcast
