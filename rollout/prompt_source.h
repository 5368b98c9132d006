// This job's prompts, from a JSONL file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/sampling.h"
#include "rollout/chat_template.h"

namespace rollcast {

/// One of `text` and `tokens` is not empty.
struct Prompt {
  std::string id;               // unique in its file
  std::string text;             // UTF-8; messages are rendered into it
  std::vector<int32_t> tokens;  // used as they are
  bool rendered = false;  // `text` comes from messages: the template has put all special tokens in
  std::string answer;     // what the completion should say; empty: none
  std::string metadata_json;  // what the row has under "metadata", for scorers; empty: nothing
  // PromptOptions::sampling with what the row overrides; none when it overrides nothing.
  std::optional<SamplingParams> sampling;
};

struct PromptOptions {
  const ChatTemplate* chat_template = nullptr;  // null: "messages" are refused
  int32_t vocab_size = 0;                       // > 0: token ids must be below
  bool has_tokenizer = true;                    // else "text" and "messages" are refused
  bool needs_answer = false;                    // a scorer that can do nothing without one
  SamplingParams sampling{};                    // of rows that do not say otherwise
};

/// Reads rows {"id", "text"}, {"id", "tokens"} or {"id", "messages": [{"role", "content"}]}, each
/// with an optional "answer" (text or number), "sampling" (an object of the keys of [sampling] and
/// "seed") and "metadata" (any value). "id" (text or integer) defaults to the line number. Blank
/// lines are passed over. Throws Error with file and line when a row is not as it should be or has
/// another key, and when there is no row at all.
std::vector<Prompt> ReadPrompts(const std::filesystem::path& path, const PromptOptions& options);
/// The same from a stream; `name` is what errors call it.
std::vector<Prompt> ReadPrompts(std::istream& in, const std::string& name,
                                const PromptOptions& options);

/// Hands prompts out epoch after epoch, each in an order of its own that is a function of seed and
/// epoch alone. A position in the whole order is one number, so a run resumes with Seek. Used from
/// one thread.
class PromptSource {
 public:
  /// `prompts` must not be empty. Without `shuffle` every epoch has the file's order.
  PromptSource(std::vector<Prompt> prompts, uint64_t seed, bool shuffle);

  const Prompt& Next();
  /// Prompts handed out since the very first.
  uint64_t position() const { return position_; }
  void Seek(uint64_t position) { position_ = position; }
  uint64_t epoch() const { return position_ / prompts_.size(); }

  const std::vector<Prompt>& prompts() const { return prompts_; }
  /// Null when there is none.
  const Prompt* Find(const std::string& id) const;

 private:
  void Order(uint64_t epoch);

  std::vector<Prompt> prompts_;
  uint64_t seed_;
  bool shuffle_;
  uint64_t position_ = 0;
  uint64_t ordered_epoch_ = 0;
  std::vector<uint32_t> order_;  // of epoch ordered_epoch_: indices into prompts_
  std::unordered_map<std::string, size_t> by_id_;
};

}  // namespace rollcast
