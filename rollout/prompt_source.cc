#include "rollout/prompt_source.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/input_stream.h"
#include "engine/json_text.h"
#include "kernels/check.h"
#include "rollout/numeric_answer.h"
#include "rollout/sampling_fields.h"

namespace rollcast {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const std::vector<std::string> kRowKeys = {"id",     "text",     "tokens",  "messages",
                                           "answer", "sampling", "metadata"};

/// The row's text, or an Error that names `key`.
const std::string& Text(const json& value, const char* key) {
  if (!value.is_string())
    throw Error(StrCat("\"", key, "\" is ", JsonKind(value), "; it must be a string"));
  return value.get_ref<const std::string&>();
}

std::vector<int32_t> Tokens(const json& value, int32_t vocab_size) {
  if (!value.is_array())
    throw Error(StrCat("\"tokens\" is ", JsonKind(value), "; it must be an array of token ids"));
  if (value.empty()) throw Error("\"tokens\" is empty; a prompt has at least one token");
  const int64_t limit = vocab_size > 0 ? vocab_size : std::numeric_limits<int32_t>::max();
  std::vector<int32_t> tokens;
  tokens.reserve(value.size());
  for (const json& id : value) {
    // An integer that int64 does not hold is a float or too large an unsigned one here.
    const bool fits =
        id.is_number_integer() &&
        (!id.is_number_unsigned() || id.get<uint64_t>() < static_cast<uint64_t>(limit)) &&
        id.get<int64_t>() >= 0 && id.get<int64_t>() < limit;
    if (!fits)
      throw Error(StrCat("\"tokens\"[", tokens.size(), "] is ",
                         id.is_number() ? id.dump() : JsonKind(id),
                         "; it must be an integer in [0, ", limit, ")"));
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

std::string Messages(const json& value, const ChatTemplate* chat_template) {
  if (!chat_template)
    throw Error("\"messages\" need a model with a chat template; give the prompt as \"text\"");
  if (!value.is_array())
    throw Error(StrCat("\"messages\" is ", JsonKind(value),
                       "; it must be an array of {\"role\", \"content\"}"));
  std::vector<ChatMessage> messages;
  for (const json& entry : value) {
    // A key that is passed over (tool calls, a name) would change what the model reads.
    if (!entry.is_object() || entry.size() != 2 || !entry.contains("role") ||
        !entry.contains("content"))
      throw Error(StrCat("\"messages\"[", messages.size(),
                         "] must be an object of \"role\" and \"content\" alone"));
    messages.push_back({Text(entry["role"], "role"), Text(entry["content"], "content")});
  }
  return chat_template->Render(messages);
}

Prompt ToPrompt(const json& row, uint64_t number, const PromptOptions& options) {
  if (!row.is_object()) throw Error(StrCat("the row is ", JsonKind(row), "; it must be an object"));
  for (const auto& [key, value] : row.items())
    if (std::find(kRowKeys.begin(), kRowKeys.end(), key) == kRowKeys.end())
      throw Error(StrCat("unknown key \"", key, "\"",
                         IsSamplingKey(key) ? "; it goes under \"sampling\""
                                            : Suggestion(key, kRowKeys) +
                                                  " (what is for a scorer alone goes under "
                                                  "\"metadata\")"));
  Prompt prompt;
  if (const auto id = row.find("id"); id == row.end()) {
    prompt.id = StrCat(number);
  } else if (id->is_number_integer()) {
    prompt.id = id->dump();
  } else if (id->is_string() && !id->get_ref<const std::string&>().empty()) {
    prompt.id = id->get<std::string>();
  } else {
    throw Error("\"id\" must be an integer or a string that is not empty");
  }

  const auto text = row.find("text"), tokens = row.find("tokens"), messages = row.find("messages");
  const int given = (text != row.end()) + (tokens != row.end()) + (messages != row.end());
  if (given != 1)
    throw Error(StrCat("the row has ", given ? "more than one" : "none",
                       " of \"text\", \"tokens\" and \"messages\"; it must have one"));
  if (tokens == row.end() && !options.has_tokenizer)
    throw Error(StrCat("\"", text != row.end() ? "text" : "messages",
                       "\" needs a tokenizer, and the model's folder has none: give \"tokens\", or "
                       "name one with rollout.tokenizer"));
  if (text != row.end()) {
    prompt.text = Text(*text, "text");
    if (prompt.text.empty()) throw Error("\"text\" is empty; a prompt has at least one token");
  } else if (tokens != row.end()) {
    prompt.tokens = Tokens(*tokens, options.vocab_size);
  } else {
    prompt.text = Messages(*messages, options.chat_template);
    prompt.rendered = true;
  }

  if (const auto answer = row.find("answer"); answer != row.end() && !answer->is_null()) {
    if (!answer->is_string() && !answer->is_number())
      throw Error(StrCat("\"answer\" is ", JsonKind(*answer), "; it must be a string or a number"));
    prompt.answer = answer->is_string() ? answer->get<std::string>() : answer->dump();
  }
  if (options.needs_answer && prompt.answer.empty())
    throw Error("there is no \"answer\", and the scorer compares with it");
  if (const auto metadata = row.find("metadata"); metadata != row.end())
    prompt.metadata_json = metadata->dump();
  if (const auto sampling = row.find("sampling"); sampling != row.end()) {
    prompt.sampling = options.sampling;
    OverrideSampling(sampling->dump(), options.vocab_size, *prompt.sampling);
    if (!options.has_tokenizer && !prompt.sampling->stop_strings.empty())
      throw Error("sampling.stop_strings need a tokenizer, and the model's folder has none");
  }
  return prompt;
}

Prompt ReadRow(const std::string& line, const std::string& name, uint64_t number,
               const PromptOptions& options) {
  const json row = ParseJson<json>(line, name, number, LargeIntegers::kRefused);
  try {
    return ToPrompt(row, number, options);
  } catch (const Error& error) {
    throw Error(StrCat(name, ":", number, ": ", error.what()));
  }
}

}  // namespace

std::vector<Prompt> ReadPrompts(std::istream& in, const std::string& name,
                                const PromptOptions& options) {
  std::vector<Prompt> prompts;
  std::unordered_map<std::string, uint64_t> lines;  // of ids
  std::string line;
  uint64_t number = 0;
  while (std::getline(in, line)) {
    ++number;
    if (Trim(line).empty()) continue;
    prompts.push_back(ReadRow(line, name, number, options));
    const auto [known, is_new] = lines.emplace(prompts.back().id, number);
    if (!is_new)
      throw Error(StrCat(name, ":", number, ": \"id\" ", prompts.back().id, " is that of line ",
                         known->second, " already"));
  }
  if (in.bad()) throw Error(StrCat(name, ":", number + 1, ": cannot be read"));
  if (prompts.empty()) throw Error(StrCat(name, ": has no prompts"));
  return prompts;
}

std::vector<Prompt> ReadPrompts(const fs::path& path, const PromptOptions& options) {
  InputStream in(path);
  return ReadPrompts(in, path.string(), options);
}

PromptSource::PromptSource(std::vector<Prompt> prompts, uint64_t seed, bool shuffle)
    : prompts_(std::move(prompts)), seed_(seed), shuffle_(shuffle), order_(prompts_.size()) {
  RC_CHECK(!prompts_.empty());
  RC_CHECK_LE(prompts_.size(), std::numeric_limits<uint32_t>::max());
  for (size_t i = 0; i < prompts_.size(); ++i) by_id_.emplace(prompts_[i].id, i);
  Order(0);
}

const Prompt& PromptSource::Next() {
  if (epoch() != ordered_epoch_) Order(epoch());
  return prompts_[order_[position_++ % prompts_.size()]];
}

const Prompt* PromptSource::Find(const std::string& id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &prompts_[found->second];
}

void PromptSource::Order(uint64_t epoch) {
  ordered_epoch_ = epoch;
  std::iota(order_.begin(), order_.end(), 0u);
  if (!shuffle_) return;
  // Fisher-Yates with our own draws: std::shuffle differs between libraries. The bias of a 64-bit
  // remainder is below n / 2^64.
  for (size_t i = order_.size() - 1; i > 0; --i)
    std::swap(order_[i], order_[CompletionSeed(seed_, epoch, i) % (i + 1)]);
}

}  // namespace rollcast
