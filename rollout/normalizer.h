// The `normalizer` of a tokenizer.json.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rollout/json_node.h"

namespace rollcast {

/// A stretch of text on its way through the tokenizer.
struct NormalizedText {
  std::string text;
  /// Bytes at the front of `text` that stand for the first character of the whole input; 0 when it
  /// does not begin there. Metaspace with the scheme "first" asks.
  size_t origin_bytes = 0;
};

/// Immutable and thread-safe.
class Normalizer {
 public:
  /// Changes nothing.
  Normalizer();
  /// An Error names a normalizer that is not understood.
  explicit Normalizer(const JsonNode& node);
  ~Normalizer();

  void Apply(NormalizedText& text) const;
  std::string Apply(std::string_view text) const;
  bool empty() const { return steps_.empty(); }

  class Step;

 private:
  void AddSteps(const JsonNode& node, int depth);
  std::vector<std::unique_ptr<const Step>> steps_;
};

}  // namespace rollcast
