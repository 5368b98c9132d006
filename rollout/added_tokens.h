// The `added_tokens` of a tokenizer.json: strings that are cut out of a text before BPE sees it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rollout/bpe.h"
#include "rollout/json_node.h"
#include "rollout/normalizer.h"

namespace rollcast {

/// Finds, among many strings, the longest one that begins at a place. Immutable once filled.
class StringTrie {
 public:
  /// Returns false if `text` is there already. REQUIRES: `text` is not empty.
  bool Insert(std::string_view text, int32_t value);
  /// The longest string at the front of `text`: its value and length, or a length of 0.
  std::pair<int32_t, size_t> Longest(std::string_view text) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  struct Node {
    int32_t value = -1;
    std::vector<std::pair<uint8_t, int32_t>> children;  // (byte, node), sorted
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
};

/// Immutable and thread-safe.
class AddedTokens {
 public:
  struct Token {
    int32_t id;
    std::string content;
    std::string decoded;  // what Decode gives for it: `content`, normalized if that applies
    bool single_word, lstrip, rstrip, normalized, special;
  };
  /// A stretch of a text: a token, or text between tokens when `id` is -1.
  struct Segment {
    size_t begin, end;
    int32_t id;
  };

  AddedTokens() = default;
  /// An Error names a token whose id is not the one that Hugging Face tokenizers would give it.
  AddedTokens(const JsonNode& node, const Vocabulary& vocabulary, const Normalizer& normalizer);

  /// Cuts out the tokens that are matched before normalization; non-empty segments in order. A
  /// token that strips may overlap the one before it.
  std::vector<Segment> SplitRaw(std::string_view text) const { return Split(text, raw_); }
  /// The same for the others, on normalized text.
  std::vector<Segment> SplitNormalized(std::string_view text) const {
    return Split(text, normalized_);
  }

  const std::vector<Token>& tokens() const { return tokens_; }

 private:
  std::vector<Segment> Split(std::string_view text, const StringTrie& trie) const;

  std::vector<Token> tokens_;
  StringTrie raw_, normalized_;  // values index tokens_
};

}  // namespace rollcast
