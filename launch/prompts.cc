#include "launch/prompts.h"

#include <filesystem>
#include <optional>
#include <string>

#include "launch/rollout_process.h"
#include "rollout/chat_template.h"

namespace rollcast {

std::vector<Prompt> LoadPrompts(const Config& config, int vocab_size) {
  std::filesystem::path folder =
      config.rollout.tokenizer.empty() ? config.model.path : config.rollout.tokenizer;
  if (!std::filesystem::is_directory(folder)) folder = folder.parent_path();
  std::optional<ChatTemplate> chat;
  std::string why_not;
  try {
    chat = ChatTemplate::Load(folder);
  } catch (const Error& e) {
    why_not = e.what();  // of no interest unless a prompt has messages
  }
  PromptOptions options;
  options.has_tokenizer = HasTokenizer(config);
  options.needs_answer = config.scorer.kind == "exact" || config.scorer.kind == "numeric";
  options.sampling = config.sampling;
  options.sampling.seed = config.rollout.seed;
  if (const std::string fault = Validate(config.sampling, vocab_size); !fault.empty())
    throw Error(StrCat("sampling.", fault));
  if (!options.has_tokenizer && !config.sampling.stop_strings.empty())
    throw Error(StrCat("sampling.stop_strings need a tokenizer, and ", config.model.path,
                       " has none; name one with rollout.tokenizer"));
  options.chat_template = chat.has_value() ? &*chat : nullptr;
  options.vocab_size = vocab_size;
  try {
    return ReadPrompts(config.rollout.prompts, options);
  } catch (const Error& e) {
    const std::string what = e.what();
    if (chat.has_value() || what.find("\"messages\"") == std::string::npos) throw;
    throw Error(StrCat(what, " (", why_not, ")"));
  }
}

PromptGroup ToGroup(const Prompt& prompt, const RolloutSettings& settings) {
  PromptGroup group;
  group.prompt_id = prompt.id;
  group.tokens = prompt.tokens;
  group.text = prompt.text;
  group.add_special_tokens = settings.add_special_tokens && !prompt.rendered;
  group.reference = prompt.answer;
  group.metadata = prompt.metadata_json;
  group.sampling = prompt.sampling;
  return group;
}

}  // namespace rollcast
