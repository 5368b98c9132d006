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

  /// Throws Error with `name` and line.
  std::vector<Prompt> Read(std::istream& in, const std::string& name) const;
  /// The same from a file.
  std::vector<Prompt> Read(const std::filesystem::path& path) const;

 private:
  // Adds to an error about messages why there is no template.
  std::vector<Prompt> Explain(
      const std::function<std::vector<Prompt>(const PromptOptions&)>& read) const;

  std::optional<ChatTemplate> chat_;
  std::string why_no_chat_;
  int vocab_size_;
};

/// Reads rollout.prompts. Throws Error with file and line.
std::vector<Prompt> LoadPrompts(const Config& config, int vocab_size);

/// What is submitted for `prompt`.
PromptGroup ToGroup(const Prompt& prompt, const RolloutSettings& settings);

}  // namespace rollcast
