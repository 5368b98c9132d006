// A tokenizer whose ids are bytes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rollout/tokenizer.h"

namespace rollcast::testing {

/// Ids 0 to 255 are bytes; there are no special tokens. Ids beyond decode to nothing.
class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text, bool = false,
                              const std::function<void()>& = nullptr) const override {
    std::vector<int32_t> ids;
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string Decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (int32_t id : ids)
      if (id < 256) text += static_cast<char>(id);
    // Like a real one: an unfinished character at the end becomes U+FFFD.
    size_t start = text.size();
    while (start > 0 && (static_cast<unsigned char>(text[start - 1]) & 0xC0) == 0x80) --start;
    if (start > 0 && static_cast<unsigned char>(text[start - 1]) >= 0xC0) {
      const auto lead = static_cast<unsigned char>(text[start - 1]);
      const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
      if (text.size() - (start - 1) < length) {
        text.resize(start - 1);
        text += "\xEF\xBF\xBD";
      }
    }
    return text;
  }
  int32_t vocab_size() const override { return 256; }
  bool IsSpecial(int32_t) const override { return false; }
  int32_t TokenToId(std::string_view token) const override {
    return token.size() == 1 ? static_cast<unsigned char>(token[0]) : -1;
  }
};

}  // namespace rollcast::testing
