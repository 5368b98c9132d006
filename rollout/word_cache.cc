#include "rollout/word_cache.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"

namespace rollcast {

namespace {
constexpr size_t kSlots = size_t{1} << 16;
constexpr size_t kMaxWords = kSlots / 2;
// A word of no ids (all its characters unknown) still needs a span that is not null.
constexpr int32_t kNoIds[1] = {0};
}  // namespace

WordCache::WordCache() : slots_(kSlots) {}

uint64_t WordCache::Hash(std::string_view word) {
  // Multiply and fold, eight bytes at a time.
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
  uint64_t hash = word.size() * kOdd;
  size_t i = 0;
  for (; i + 8 <= word.size(); i += 8) {
    uint64_t chunk;
    std::memcpy(&chunk, word.data() + i, 8);
    hash = (hash ^ chunk) * kOdd;
    hash ^= hash >> 32;
  }
  uint64_t tail = 0;
  std::memcpy(&tail, word.data() + i, word.size() - i);
  hash = (hash ^ tail) * kOdd;
  return hash ^ hash >> 29;
}

std::span<const int32_t> WordCache::Find(std::string_view word, uint64_t hash) const {
  for (size_t i = hash % kSlots; slots_[i].word_length != 0; i = (i + 1) % kSlots) {
    const Slot& slot = slots_[i];
    if (slot.hash == hash && slot.word_length == word.size() &&
        std::memcmp(words_.data() + slot.word_begin, word.data(), word.size()) == 0)
      return slot.ids_length == 0 ? std::span(kNoIds, 0)
                                  : std::span(ids_).subspan(slot.ids_begin, slot.ids_length);
  }
  return {};
}

void WordCache::Insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
  RC_CHECK(!word.empty() && word.size() <= kMaxWordBytes);
  if (count_ == kMaxWords) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    words_.clear();
    ids_.clear();
    count_ = 0;
  }
  size_t i = hash % kSlots;
  while (slots_[i].word_length != 0) i = (i + 1) % kSlots;
  slots_[i] = {hash, static_cast<uint32_t>(words_.size()), static_cast<uint32_t>(ids_.size()),
               static_cast<uint32_t>(word.size()), static_cast<uint32_t>(ids.size())};
  words_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++count_;
}

}  // namespace rollcast
