// The checksum of weights: what every rank of an update compares. Made so that a GPU computes it at
// the speed of its memory: the order of summation does not matter.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rollcast {

/// What stands for the place of a word: a multiple of 2^64 divided by the golden ratio.
constexpr uint64_t kDigestStep = 0x9e3779b97f4a7c15ull;
constexpr uint64_t DigestKey(uint64_t index) { return (index + 1) * kDigestStep; }

/// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// OOPSLA 2014; variant 13 of Stafford).
constexpr uint64_t DigestMix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Of a word and its place.
constexpr uint64_t DigestWord(uint64_t word, uint64_t index) {
  return DigestMix(word ^ DigestKey(index));
}

/// Sum modulo 2^64 of DigestWord(w_i, offset / 8 + i) over the little-endian 64-bit words w_i of
/// `bytes` bytes of host memory, the last word filled up with zeros. Pieces of one tensor add up
/// when all but the last are multiples of 8 bytes; `offset` is the piece's place in its tensor.
uint64_t DigestSum(const void* data, size_t bytes, size_t offset = 0);

/// The checksum of a list of tensors, from their sums in order.
class DigestFold {
 public:
  void Add(uint64_t sum, uint64_t bytes) { value_ = DigestWord(value_ ^ sum, bytes); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace rollcast
