// The `post_processor` of a tokenizer.json, as far as it concerns one text: where special tokens
// go.
#pragma once

#include <cstdint>
#include <vector>

#include "rollout/json_node.h"

namespace rollcast {

/// Immutable and thread-safe.
class SpecialTemplate {
 public:
  /// Adds nothing.
  SpecialTemplate() = default;
  /// An Error names a post-processor that is not understood.
  explicit SpecialTemplate(const JsonNode& node);

  std::vector<int32_t> Apply(std::vector<int32_t> ids, bool add_special_tokens) const;
  /// One more than the highest id that it adds.
  int32_t vocab_size() const;

 private:
  struct Piece {
    bool text;                 // the ids of the text
    std::vector<int32_t> ids;  // or these
  };
  void Read(const JsonNode& node, int depth);
  void ReadTemplate(const JsonNode& node);
  std::vector<Piece> pieces_;  // none: the text alone
};

}  // namespace rollcast
