// The `model` of a tokenizer.json: byte pair encoding.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/mutex.h"
#include "rollout/json_node.h"
#include "rollout/polling.h"

namespace rollcast {

/// Highest id that a tokenizer may have: a table is kept by id.
inline constexpr int32_t kMaxTokenId = (1 << 24) - 1;

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Vocabulary = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

/// Immutable and thread-safe: what a call remembers for later ones is kept in a pool of caches.
class Bpe {
 public:
  /// `pieces_are_bytes`: the pieces that Tokenize gets are yet to be spelt in the byte alphabet.
  /// An Error names a part of the model that is not understood or does not fit.
  Bpe(const JsonNode& node, bool pieces_are_bytes);
  ~Bpe();

  const Vocabulary& vocabulary() const { return vocabulary_; }

  /// Buffers and cache of one thread at a time.
  class Workspace;
  /// Lends a workspace for the time of one text.
  class Loan {
   public:
    explicit Loan(const Bpe& bpe);
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    Workspace& operator*() { return *workspace_; }

   private:
    const Bpe& bpe_;
    std::unique_ptr<Workspace> workspace_;
  };

  /// Appends the ids of one piece. `piece` is valid UTF-8 and not empty.
  void Tokenize(std::string_view piece, Workspace& workspace, Polling& polling,
                std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  /// Pairs of ids to merges: open addressing in one array.
  class MergeTable {
   public:
    void Reserve(size_t count);
    void Set(int32_t left, int32_t right, Merge merge);
    const Merge* Find(int32_t left, int32_t right) const;

   private:
    struct Slot {
      uint64_t pair = kEmpty;
      Merge merge;
    };
    static constexpr uint64_t kEmpty = ~uint64_t{0};
    size_t IndexOf(uint64_t pair) const;
    std::vector<Slot> slots_;  // a power of two of them
  };

  void ReadMerges(const JsonNode& node);
  void FindIndependentWords();
  void TokenizeWord(std::string_view word, Workspace& workspace, Polling& polling,
                    std::vector<int32_t>& ids) const;
  void AddSymbols(std::string_view word, Workspace& workspace, Polling& polling) const;
  void MergeSymbols(Workspace& workspace, Polling& polling) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  std::vector<int32_t> byte_ids_;  // [256] of <0x00> to <0xFF>, -1 where there is none
  std::optional<std::string> unknown_;
  int32_t unknown_id_ = -1;
  std::string prefix_, suffix_;  // of characters inside and at the end of a word
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool pieces_are_bytes_;
  bool words_are_independent_ = false;
  std::vector<std::string> merged_;  // results of all merges; empty once the model is read

  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_ RC_GUARDED_BY(mutex_);
};

}  // namespace rollcast
