#include "rollout/added_tokens.h"

#include <algorithm>

#include "kernels/check.h"
#include "rollout/unicode.h"

namespace rollcast {

namespace {

auto FindChild(auto& children, uint8_t byte) {
  return std::lower_bound(children.begin(), children.end(), byte,
                          [](const auto& child, uint8_t value) { return child.first < value; });
}

bool EndsWithWord(std::string_view text) {
  return !text.empty() && IsWordCharacter(LastCodePoint(text).value);
}

bool StartsWithWord(std::string_view text) {
  return !text.empty() && IsWordCharacter(FirstCodePoint(text).value);
}

}  // namespace

bool StringTrie::Insert(std::string_view text, int32_t value) {
  RC_CHECK(!text.empty());
  int32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    auto child = FindChild(nodes_[node].children, byte);
    if (child == nodes_[node].children.end() || child->first != byte) {
      child = nodes_[node].children.insert(child, {byte, static_cast<int32_t>(nodes_.size())});
      node = child->second;
      nodes_.emplace_back();
    } else {
      node = child->second;
    }
  }
  if (nodes_[node].value != -1) return false;
  nodes_[node].value = value;
  return true;
}

std::pair<int32_t, size_t> StringTrie::Longest(std::string_view text) const {
  std::pair<int32_t, size_t> best = {-1, 0};
  int32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const auto child = FindChild(nodes_[node].children, byte);
    if (child == nodes_[node].children.end() || child->first != byte) break;
    node = child->second;
    if (nodes_[node].value != -1) best = {nodes_[node].value, i + 1};
  }
  return best;
}

AddedTokens::AddedTokens(const JsonNode& node, const Vocabulary& vocabulary,
                         const Normalizer& normalizer) {
  Vocabulary added;
  int64_t next_id = static_cast<int64_t>(vocabulary.size());
  for (size_t i = 0; i < node.size(); ++i) {
    const JsonNode entry = node[i];
    Token token;
    token.content = entry.At("content").String();
    token.id = static_cast<int32_t>(entry.At("id").Int(0, kMaxTokenId));
    token.single_word = entry.At("single_word").Bool();
    token.lstrip = entry.At("lstrip").Bool();
    token.rstrip = entry.At("rstrip").Bool();
    token.normalized = entry.At("normalized").Bool();
    token.special = entry.At("special").Bool();
    if (token.content.empty()) continue;

    // Hugging Face tokenizers number added tokens themselves and only warn when a file disagrees.
    const auto known = vocabulary.find(token.content);
    if (!added.emplace(token.content, token.id).second)
      entry.Fail(StrCat("repeats \"", token.content, "\""));
    const int64_t expected = known != vocabulary.end() ? known->second : next_id++;
    if (token.id != expected)
      entry.Fail(StrCat("\"", token.content, "\" has id ", token.id, ", expected ", expected,
                        known != vocabulary.end() ? ", its id in the vocabulary"
                                                  : ", the next one after the vocabulary"));

    token.decoded = token.normalized ? normalizer.Apply(token.content) : token.content;
    const std::string& pattern = token.decoded;
    if (pattern.empty()) entry.Fail(StrCat("\"", token.content, "\" is empty once normalized"));
    StringTrie& trie = token.normalized ? normalized_ : raw_;
    if (!trie.Insert(pattern, static_cast<int32_t>(tokens_.size())))
      entry.Fail(StrCat("\"", token.content, "\" matches the same text as another token"));
    tokens_.push_back(std::move(token));
  }
}

std::vector<AddedTokens::Segment> AddedTokens::Split(std::string_view text,
                                                     const StringTrie& trie) const {
  std::vector<Segment> segments;
  size_t covered = 0;
  for (size_t i = 0; !trie.empty() && i < text.size();) {
    const auto [index, length] = trie.Longest(text.substr(i));
    if (length == 0) {
      ++i;
      continue;
    }
    const Token& token = tokens_[index];
    size_t begin = i, end = i + length;
    i = end;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end))))
      continue;
    if (token.lstrip) {
      while (begin > 0 && IsWhitespace(LastCodePoint(text.substr(0, begin)).value))
        begin -= LastCodePoint(text.substr(0, begin)).length;
      begin = std::max(begin, covered);
    }
    if (token.rstrip)
      while (end < text.size() && IsWhitespace(FirstCodePoint(text.substr(end)).value))
        end += FirstCodePoint(text.substr(end)).length;
    if (covered < begin) segments.push_back({covered, begin, -1});
    // A token of whitespace may be all inside what the one before it has stripped.
    if (begin < end) segments.push_back({begin, end, token.id});
    covered = end;
  }
  if (covered < text.size()) segments.push_back({covered, text.size(), -1});
  return segments;
}

}  // namespace rollcast
