#include "launch/prompts.h"

#include "launch/rollout_process.h"

namespace rollcast {

PromptReader::PromptReader(const Config& config, int vocab_size) {
  std::filesystem::path folder =
      config.rollout.tokenizer.empty() ? config.model.path : config.rollout.tokenizer;
  std::error_code ignored;  // who opens a file of the folder finds out
  if (!std::filesystem::is_directory(folder, ignored)) folder = folder.parent_path();
  try {
    chat_ = ChatTemplate::Load(folder);
  } catch (const Error& e) {
    why_no_chat_ = e.what();  // of no interest unless a prompt has messages
  }
  options_.vocab_size = vocab_size;
  // A trainer of one's own may be where the model is not; its ranks then judge.
  options_.has_tokenizer =
      HasTokenizer(config) || !std::filesystem::exists(config.model.path, ignored);
  options_.needs_answer = config.scorer.kind == "exact" || config.scorer.kind == "numeric";
}

std::vector<Prompt> PromptReader::Explain(
    const SamplingParams& sampling,
    const std::function<std::vector<Prompt>(const PromptOptions&)>& read) const {
  PromptOptions options = options_;
  options.chat_template = chat_.has_value() ? &*chat_ : nullptr;
  options.sampling = sampling;
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

std::vector<Prompt> PromptReader::Read(const std::filesystem::path& path,
                                       const SamplingParams& sampling) const {
  return Explain(sampling,
                 [&](const PromptOptions& options) { return ReadPrompts(path, options); });
}

std::vector<Prompt> LoadPrompts(const Config& config, int vocab_size) {
  if (const std::string fault = Validate(config.sampling, vocab_size); !fault.empty())
    throw Error(StrCat("sampling.", fault));
  if (!HasTokenizer(config) && !config.sampling.stop_strings.empty())
    throw Error(StrCat("sampling.stop_strings need a tokenizer, and ", config.model.path,
                       " has none; name one with rollout.tokenizer"));
  SamplingParams sampling = config.sampling;
  sampling.seed = config.rollout.seed;
  return PromptReader(config, vocab_size).Read(config.rollout.prompts, sampling);
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
