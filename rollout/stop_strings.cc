#include "rollout/stop_strings.h"

#include <algorithm>
#include <utility>

namespace rollcast {

// Special tokens are kept in the text, so that a stop string may name one ("<|im_end|>").
StopStrings::StopStrings(const Tokenizer& tokenizer, std::vector<std::string> strings,
                         int min_tokens)
    : tokenizer_(tokenizer),
      decoder_(tokenizer, /*skip_special_tokens=*/false),
      strings_(std::move(strings)),
      min_tokens_(static_cast<size_t>(std::max(min_tokens, 0))) {
  std::erase(strings_, "");
  for (const std::string& s : strings_) longest_ = std::max(longest_, s.size());
}

bool StopStrings::Check(std::span<const int32_t> output) {
  if (strings_.empty()) return false;
  for (; found_.empty() && seen_ < output.size(); ++seen_) {
    const size_t before = tail_.size();
    tail_ += decoder_.Append(output[seen_]);
    // The earliest match that ends in the new text decides, the longer one where two begin there.
    size_t best = std::string::npos;
    for (const std::string& s : strings_) {
      const size_t from = before >= s.size() ? before - s.size() + 1 : 0;
      const size_t at = tail_.find(s, from);
      if (at == std::string::npos || seen_ + 1 < min_tokens_) continue;
      if (best == std::string::npos || at < best || (at == best && s.size() > found_.size())) {
        best = at;
        found_ = s;
      }
    }
    if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - (longest_ - 1));
  }
  return !found_.empty();
}

void StopStrings::Cut(std::span<const int32_t> output, std::string& text) const {
  if (found_.empty() || output.empty()) return;
  // The match is the first that ends in what the last token has added: a token may hold the string
  // more than once, and a special token in the middle of a match has left the text already.
  IncrementalDecoder decoder(tokenizer_, /*skip_special_tokens=*/true);
  size_t before = 0;
  for (const int32_t id : output.first(output.size() - 1)) before += decoder.Append(id).size();
  const size_t from = before >= found_.size() ? before - found_.size() + 1 : 0;
  if (const size_t at = text.find(found_, from); at != std::string::npos) text.resize(at);
}

}  // namespace rollcast
