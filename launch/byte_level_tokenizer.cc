#include "launch/byte_level_tokenizer.h"

#include <nlohmann/json.hpp>

#include "kernels/check.h"

namespace rollcast {

using json = nlohmann::ordered_json;

std::string ByteLevelCharacter(unsigned char byte) {
  const auto stands_for_itself = [](int b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  int code = byte;
  if (!stands_for_itself(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += !stands_for_itself(b);
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

std::string ByteLevelTokenizerJson(const std::vector<std::string>& tokens,
                                   const std::vector<std::string>& merges,
                                   const std::vector<AddedToken>& added) {
  json vocab = json::object();
  for (size_t id = 0; id < tokens.size(); ++id) {
    // A plain assignment would let the later of two equal tokens take the id of the earlier.
    if (!vocab.emplace(tokens[id], id).second)
      throw Error(StrCat("tokenizer: token ", id, " \"", tokens[id], "\" is there twice"));
  }
  json added_tokens = json::array();
  for (const AddedToken& token : added)
    added_tokens.push_back({{"id", token.id},
                            {"content", token.content},
                            {"single_word", false},
                            {"lstrip", false},
                            {"rstrip", false},
                            {"normalized", false},
                            {"special", token.special}});
  json merge_pairs = json::array();
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ');
    if (space == 0 || space == std::string::npos || space + 1 == merge.size() ||
        merge.find(' ', space + 1) != std::string::npos)
      throw Error(StrCat("tokenizer: merge \"", merge, "\" is not two tokens"));
    merge_pairs.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  const auto byte_level = [](bool prefix_space) {
    return json{{"type", "ByteLevel"},
                {"add_prefix_space", prefix_space},
                {"trim_offsets", true},
                {"use_regex", true}};
  };
  const json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added_tokens)},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         json::array({json{{"type", "Digits"}, {"individual_digits", true}}, byte_level(false)})}}},
      {"post_processor", nullptr},
      {"decoder", byte_level(true)},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", false},
        {"vocab", std::move(vocab)},
        {"merges", std::move(merge_pairs)}}}};
  try {
    return tokenizer.dump(1) + "\n";
  } catch (const json::exception& e) {
    throw Error(StrCat("tokenizer: ", e.what()));  // a token that is not UTF-8
  }
}

}  // namespace rollcast
