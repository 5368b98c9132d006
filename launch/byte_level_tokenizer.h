// The tokenizer.json of a byte-level BPE vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rollcast {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = true;
};

/// The character that stands for `byte` in byte-level vocabularies, as UTF-8: printable Latin-1
/// stands for itself, the others for U+0100 and on (OpenAI's GPT-2 encoder).
std::string ByteLevelCharacter(unsigned char byte);

/// Text of a tokenizer.json: `tokens` by id, `merges` as "left right" in order of rank, digits
/// split one by one before GPT-2's own pattern.
std::string ByteLevelTokenizerJson(const std::vector<std::string>& tokens,
                                   const std::vector<std::string>& merges,
                                   const std::vector<AddedToken>& added);

}  // namespace rollcast
