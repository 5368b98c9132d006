// A tokenizer.json of tests/data with most of its vocabulary left out, so that a fuzz target loads
// it often.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace rollcast::testing {

/// `file` with the tokens below id 400 and the merges among them.
inline nlohmann::json SmallTokenizer(const std::filesystem::path& file) {
  std::ifstream in(file);
  nlohmann::json tokenizer = nlohmann::json::parse(in);
  nlohmann::json& vocab = tokenizer["model"]["vocab"];
  nlohmann::json kept = nlohmann::json::object(), merges = nlohmann::json::array();
  for (const auto& [token, id] : vocab.items())
    if (id < 400) kept[token] = id;
  vocab = std::move(kept);
  for (const auto& merge : tokenizer["model"]["merges"]) {
    // "left right", or ["left", "right"].
    std::string left, right;
    if (merge.is_array()) {
      left = merge[0];
      right = merge[1];
    } else {
      const std::string both = merge;
      left = both.substr(0, both.find(' '));
      right = both.substr(both.find(' ') + 1);
    }
    if (vocab.contains(left) && vocab.contains(right) && vocab.contains(left + right))
      merges.push_back(merge);
  }
  tokenizer["model"]["merges"] = std::move(merges);
  return tokenizer;
}

}  // namespace rollcast::testing
