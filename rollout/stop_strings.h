// Finds stop strings in a completion while it grows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rollout/tokenizer.h"

namespace rollcast {

/// One completion's search. Called from one thread at a time.
class StopStrings {
 public:
  /// `tokenizer` must outlive it. A match counts only when it ends in token `min_tokens` or later.
  StopStrings(const Tokenizer& tokenizer, std::vector<std::string> strings, int min_tokens);

  /// `output` is the whole output so far, at least as long as at the last call. True once a stop
  /// string has been completed.
  bool Check(std::span<const int32_t> output);

  /// `text`: `output`, whose last token has completed a stop string, decoded without special
  /// tokens. Ends it before the stop string; does nothing where none has been found.
  void Cut(std::span<const int32_t> output, std::string& text) const;

 private:
  const Tokenizer& tokenizer_;
  IncrementalDecoder decoder_;
  std::vector<std::string> strings_;
  size_t min_tokens_;
  size_t longest_ = 0;
  size_t seen_ = 0;   // tokens decoded
  std::string tail_;  // text in which a match may still begin
  std::string found_;
};

}  // namespace rollcast
