#include "rollout/bpe.h"

#include <algorithm>
#include <bit>

#include "kernels/check.h"
#include "rollout/byte_alphabet.h"
#include "rollout/unicode.h"
#include "rollout/word_cache.h"

namespace rollcast {

namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's space
constexpr int32_t kNone = -1;

std::string ByteToken(int byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return StrCat("<0x", kDigits[byte / 16], kDigits[byte % 16], ">");
}

std::string OptionalString(const JsonNode& node, std::string_view key) {
  const auto value = node.Find(key);
  return value ? value->String() : "";
}

}  // namespace

class Bpe::Workspace {
 public:
  struct Symbol {
    int32_t id;
    int32_t previous, next;  // neighbours, kNone at the ends
    bool merged_away;
  };
  struct Candidate {
    uint32_t rank;
    int32_t position;  // of the left symbol
    int32_t id;        // of the result
    /// For a heap whose front is the least (rank, position).
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };

  void Add(int32_t id) {
    const int32_t position = static_cast<int32_t>(symbols.size());
    if (position > 0) symbols.back().next = position;
    symbols.push_back({id, position - 1, kNone, false});
  }

  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  WordCache cache;
};

Bpe::Loan::Loan(const Bpe& bpe) : bpe_(bpe) {
  {
    MutexLock lock(bpe_.mutex_);
    if (!bpe_.idle_.empty()) {
      workspace_ = std::move(bpe_.idle_.back());
      bpe_.idle_.pop_back();
    }
  }
  if (!workspace_) workspace_ = std::make_unique<Workspace>();
}

Bpe::Loan::~Loan() {
  MutexLock lock(bpe_.mutex_);
  bpe_.idle_.push_back(std::move(workspace_));
}

Bpe::~Bpe() = default;

Bpe::Bpe(const JsonNode& node, bool pieces_are_bytes)
    : byte_ids_(256, kNone), pieces_are_bytes_(pieces_are_bytes) {
  // Files older than the key name no type.
  if (const auto type = node.Find("type"); type && type->String() != "BPE") type->FailUnsupported();
  if (const auto dropout = node.Find("dropout"); dropout && dropout->Number() != 0)
    dropout->Fail("is not 0: encoding would be random");
  prefix_ = OptionalString(node, "continuing_subword_prefix");
  suffix_ = OptionalString(node, "end_of_word_suffix");
  fuse_unknown_ = node.BoolOr("fuse_unk", false);
  byte_fallback_ = node.BoolOr("byte_fallback", false);
  ignore_merges_ = node.BoolOr("ignore_merges", false);

  node.At("vocab").ForEachMember([&](const std::string& token, const JsonNode& id) {
    vocabulary_[token] = static_cast<int32_t>(id.Int(0, kMaxTokenId));
  });
  const auto find = [&](std::string_view token) {
    const auto found = vocabulary_.find(token);
    return found == vocabulary_.end() ? kNone : found->second;
  };
  if (const auto unknown = node.Find("unk_token")) {
    unknown_ = unknown->String();
    unknown_id_ = find(*unknown_);
  }
  for (int byte = 0; byte < 256; ++byte) byte_ids_[byte] = find(ByteToken(byte));
  ReadMerges(node.At("merges"));
  FindIndependentWords();
  merged_ = {};
}

void Bpe::ReadMerges(const JsonNode& node) {
  merges_.Reserve(node.size());
  uint32_t rank = 0;
  for (size_t i = 0; i < node.size(); ++i) {
    const JsonNode merge = node[i];
    std::string left, right;
    if (merge.IsString()) {
      const std::string& line = merge.String();
      if (line.starts_with("#version")) continue;
      const size_t space = line.find(' ');
      if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
        merge.Fail(StrCat("is \"", line, "\", expected two tokens with a space between"));
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else {
      if (merge.size() != 2) merge.Fail(StrCat("has ", merge.size(), " elements, expected 2"));
      left = merge[0].String();
      right = merge[1].String();
    }
    const auto id = [&](const std::string& token) {
      const auto found = vocabulary_.find(token);
      if (found == vocabulary_.end())
        merge.Fail(StrCat("needs \"", token, "\", which is not in the vocabulary"));
      return found->second;
    };
    const int32_t left_id = id(left), right_id = id(right);
    if (right.size() < prefix_.size())
      merge.Fail(StrCat("has \"", right, "\", shorter than continuing_subword_prefix"));
    std::string result = left + right.substr(prefix_.size());
    merges_.Set(left_id, right_id, {rank++, id(result)});
    merged_.push_back(std::move(result));
  }
}

void Bpe::FindIndependentWords() {
  // Without a pre-tokenizer a whole text is one piece. When no merge reaches over a space mark that
  // follows another character, the text falls apart there into words that can be merged, and
  // remembered, one by one; the mark must be a token, or runs of unknown characters could be fused
  // across it.
  if (!prefix_.empty() || !suffix_.empty() || ignore_merges_ || pieces_are_bytes_) return;
  if (!vocabulary_.contains(kSpaceMark)) return;
  words_are_independent_ = std::none_of(merged_.begin(), merged_.end(), [](std::string_view token) {
    for (size_t at = token.find(kSpaceMark); at != std::string_view::npos;
         at = token.find(kSpaceMark, at + kSpaceMark.size()))
      if (at > 0 && !token.substr(0, at).ends_with(kSpaceMark)) return true;
    return false;
  });
}

void Bpe::MergeTable::Reserve(size_t count) { slots_.assign(std::bit_ceil(2 * count + 2), Slot{}); }

size_t Bpe::MergeTable::IndexOf(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  uint64_t hash = pair * 0x9E3779B97F4A7C15;
  size_t i = (hash ^ hash >> 32) & mask;
  while (slots_[i].pair != kEmpty && slots_[i].pair != pair) i = (i + 1) & mask;
  return i;
}

void Bpe::MergeTable::Set(int32_t left, int32_t right, Merge merge) {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  slots_[IndexOf(pair)] = {pair, merge};
}

const Bpe::Merge* Bpe::MergeTable::Find(int32_t left, int32_t right) const {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  const Slot& slot = slots_[IndexOf(pair)];
  return slot.pair == kEmpty ? nullptr : &slot.merge;
}

void Bpe::Tokenize(std::string_view piece, Workspace& workspace, Polling& polling,
                   std::vector<int32_t>& ids) const {
  if (!words_are_independent_) return TokenizeWord(piece, workspace, polling, ids);
  size_t begin = 0;
  bool after_mark = true;
  for (size_t i = 0; i < piece.size();) {
    const bool mark = piece.substr(i, kSpaceMark.size()) == kSpaceMark;
    if (mark && !after_mark) {
      TokenizeWord(piece.substr(begin, i - begin), workspace, polling, ids);
      begin = i;
    }
    after_mark = mark;
    i += mark ? kSpaceMark.size() : 1;
  }
  TokenizeWord(piece.substr(begin), workspace, polling, ids);
}

void Bpe::TokenizeWord(std::string_view word, Workspace& workspace, Polling& polling,
                       std::vector<int32_t>& ids) const {
  polling.DidOne();
  const bool cached = word.size() <= WordCache::kMaxWordBytes;
  uint64_t hash = 0;
  if (cached) {
    hash = WordCache::Hash(word);
    const std::span<const int32_t> known = workspace.cache.Find(word, hash);
    if (known.data() != nullptr) {
      ids.insert(ids.end(), known.begin(), known.end());
      return;
    }
  }
  const std::string spelt = pieces_are_bytes_ ? ToByteAlphabet(word) : std::string();
  const std::string_view text = pieces_are_bytes_ ? std::string_view(spelt) : word;
  const size_t first = ids.size();
  const auto whole = ignore_merges_ ? vocabulary_.find(text) : vocabulary_.end();
  if (whole != vocabulary_.end()) {
    ids.push_back(whole->second);
  } else {
    AddSymbols(text, workspace, polling);
    MergeSymbols(workspace, polling);
    for (const Workspace::Symbol& symbol : workspace.symbols)
      if (!symbol.merged_away) ids.push_back(symbol.id);
  }
  if (cached) workspace.cache.Insert(word, hash, std::span(ids).subspan(first));
}

void Bpe::AddSymbols(std::string_view word, Workspace& workspace, Polling& polling) const {
  workspace.symbols.clear();
  bool unknown_pending = false;
  std::string decorated;
  for (size_t i = 0; i < word.size();) {
    polling.DidOne();
    const size_t length = FirstCodePoint(word.substr(i)).length;
    std::string_view character = word.substr(i, length);
    const bool first = i == 0, last = i + length == word.size();
    i += length;
    if ((!first && !prefix_.empty()) || (last && !suffix_.empty())) {
      decorated = StrCat(first ? "" : prefix_, character, last ? suffix_ : "");
      character = decorated;
    }
    if (const auto found = vocabulary_.find(character); found != vocabulary_.end()) {
      if (unknown_pending) workspace.Add(unknown_id_);
      unknown_pending = false;
      workspace.Add(found->second);
      continue;
    }
    if (byte_fallback_ && std::all_of(character.begin(), character.end(), [&](char c) {
          return byte_ids_[static_cast<uint8_t>(c)] != kNone;
        })) {
      // As in Hugging Face's, an unknown token that waits to be fused stays behind these.
      for (const char c : character) workspace.Add(byte_ids_[static_cast<uint8_t>(c)]);
      continue;
    }
    if (!unknown_) continue;
    if (unknown_id_ == kNone)
      throw Error(StrCat("tokenizer: \"", character, "\" is not in the vocabulary, and neither is ",
                         "model.unk_token \"", *unknown_, "\""));
    if (unknown_pending && !fuse_unknown_) workspace.Add(unknown_id_);
    unknown_pending = true;
  }
  if (unknown_pending) workspace.Add(unknown_id_);
}

void Bpe::MergeSymbols(Workspace& workspace, Polling& polling) const {
  auto& symbols = workspace.symbols;
  auto& heap = workspace.heap;
  heap.clear();
  const auto candidate = [&](int32_t left, int32_t right) {
    polling.DidOne();
    if (left == kNone || right == kNone) return false;
    const Merge* const merge = merges_.Find(symbols[left].id, symbols[right].id);
    if (merge != nullptr) heap.push_back({merge->rank, left, merge->id});
    return merge != nullptr;
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i)
    candidate(static_cast<int32_t>(i), static_cast<int32_t>(i + 1));
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Workspace::Candidate top = heap.back();
    heap.pop_back();
    auto& left = symbols[top.position];
    if (left.merged_away || left.next == kNone) continue;
    auto& right = symbols[left.next];
    // The neighbours may have changed since; as in Hugging Face's, another pair with the same
    // result still counts.
    const Merge* const merge = merges_.Find(left.id, right.id);
    if (merge == nullptr || merge->id != top.id) continue;
    left.id = top.id;
    left.next = right.next;
    right.merged_away = true;
    if (right.next != kNone) symbols[right.next].previous = top.position;
    if (candidate(left.previous, top.position)) std::push_heap(heap.begin(), heap.end());
    if (candidate(top.position, left.next)) std::push_heap(heap.begin(), heap.end());
  }
}

}  // namespace rollcast
