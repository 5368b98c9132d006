#include "launch/prompts.h"

#include <filesystem>

namespace rollcast {

PromptReader::PromptReader(const Config& config, int vocab_size) : vocab_size_(vocab_size) {
  std::filesystem::path folder =
      config.rollout.tokenizer.empty() ? config.model.path : config.rollout.tokenizer;
  if (!std::filesystem::is_directory(folder)) folder = folder.parent_path();
  try {
    chat_ = ChatTemplate::Load(folder);
  } catch (const Error& e) {
    why_no_chat_ = e.what();  // of no interest unless a prompt has messages
  }
}

std::vector<Prompt> PromptReader::Explain(
    const std::function<std::vector<Prompt>(const PromptOptions&)>& read) const {
  PromptOptions options;
  options.chat_template = chat_.has_value() ? &*chat_ : nullptr;
  options.vocab_size = vocab_size_;
  try {
    return read(options);
  } catch (const Error& e) {
    const std::string what = e.what();
    if (chat_.has_value() || what.find("\"messages\"") == std::string::npos) throw;
    throw Error(StrCat(what, " (", why_no_chat_, ")"));
  }
}

std::vector<Prompt> PromptReader::Read(std::istream& in, const std::string& name) const {
  return Explain([&](const PromptOptions& options) { return ReadPrompts(in, name, options); });
}

std::vector<Prompt> PromptReader::Read(const std::filesystem::path& path) const {
  return Explain([&](const PromptOptions& options) { return ReadPrompts(path, options); });
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
  return group;
}

}  // namespace rollcast
