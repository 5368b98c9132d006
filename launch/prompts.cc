#include "launch/prompts.h"

#include <filesystem>

#include "launch/rollout_process.h"

namespace rollcast {

PromptReader::PromptReader(const Config& config, int vocab_size) : sampling_(config.sampling) {
  if (const std::string fault = Validate(config.sampling, vocab_size); !fault.empty())
    throw Error(StrCat("sampling.", fault));
  std::filesystem::path folder =
      config.rollout.tokenizer.empty() ? config.model.path : config.rollout.tokenizer;
  // A trainer of the user's need not have the model where the ranks have it.
  options_.has_tokenizer = !std::filesystem::exists(folder) || HasTokenizer(config);
  if (!options_.has_tokenizer && !config.sampling.stop_strings.empty())
    throw Error(StrCat("sampling.stop_strings need a tokenizer, and ", config.model.path,
                       " has none; name one with rollout.tokenizer"));
  options_.needs_answer = config.scorer.kind == "exact" || config.scorer.kind == "numeric";
  options_.vocab_size = vocab_size;
  sampling_.seed = config.rollout.seed;
  if (!std::filesystem::is_directory(folder)) folder = folder.parent_path();
  try {
    chat_ = ChatTemplate::Load(folder);
  } catch (const Error& e) {
    why_no_chat_ = e.what();  // of no interest unless a prompt has messages
  }
}

std::vector<Prompt> PromptReader::Explain(
    const SamplingParams& sampling,
    const std::function<std::vector<Prompt>(const PromptOptions&)>& read) const {
  PromptOptions options = options_;
  options.sampling = sampling;
  options.chat_template = chat_.has_value() ? &*chat_ : nullptr;
  try {
    return read(options);
  } catch (const Error& e) {
    const std::string what = e.what();
    if (chat_.has_value() || what.find("\"messages\"") == std::string::npos) throw;
    throw Error(StrCat(what, " (", why_no_chat_, ")"));
  }
}

std::vector<Prompt> PromptReader::Read(std::istream& in, const std::string& name,
                                       const SamplingParams& sampling) const {
  return Explain(sampling,
                 [&](const PromptOptions& options) { return ReadPrompts(in, name, options); });
}

std::vector<Prompt> PromptReader::Read(const std::filesystem::path& path) const {
  return Explain(sampling_,
                 [&](const PromptOptions& options) { return ReadPrompts(path, options); });
}

std::vector<Prompt> LoadPrompts(const Config& config, int vocab_size) {
  return PromptReader(config, vocab_size).Read(config.rollout.prompts);
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
