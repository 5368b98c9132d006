// The `pre_tokenizer` of a tokenizer.json: cuts a text into the pieces that BPE works on.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rollout/json_node.h"
#include "rollout/normalizer.h"
#include "rollout/polling.h"

namespace rollcast {

/// Pieces of one text, in order, none empty. They point into the text or into `storage`.
struct PieceList {
  struct Piece {
    std::string_view text;
    size_t origin_bytes;  // as in NormalizedText
  };
  std::vector<Piece> pieces;
  std::deque<std::string> storage;
};

/// Immutable and thread-safe.
class PreTokenizer {
 public:
  /// One piece: the whole text.
  PreTokenizer();
  /// An Error names a pre-tokenizer that is not understood.
  explicit PreTokenizer(const JsonNode& node);
  ~PreTokenizer();

  /// `text` must outlive `list`.
  void Apply(const NormalizedText& text, Polling& polling, PieceList& list) const;
  /// Whether pieces are bytes that the model has yet to spell in the byte alphabet. A cached piece
  /// then never needs it.
  bool gives_bytes() const { return gives_bytes_; }

  class Step;

 private:
  void AddSteps(const JsonNode& node, int depth);
  std::vector<std::unique_ptr<Step>> steps_;
  bool gives_bytes_ = false;
};

}  // namespace rollcast
