// Remembers the ids of short pieces of text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rollcast {

/// Bounded: when it is full it starts afresh. Not thread-safe.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 64;
  WordCache();

  static uint64_t Hash(std::string_view word);
  /// The ids of `word`, valid until the next Insert; a null data pointer if it is not there.
  std::span<const int32_t> Find(std::string_view word, uint64_t hash) const;
  /// REQUIRES: `word` is not there and has at most kMaxWordBytes bytes.
  void Insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids);

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t word_begin = 0, ids_begin = 0;
    uint32_t word_length = 0, ids_length = 0;  // a word_length of 0 is an empty slot
  };
  std::vector<Slot> slots_;
  std::string words_;
  std::vector<int32_t> ids_;
  size_t count_ = 0;
};

}  // namespace rollcast
