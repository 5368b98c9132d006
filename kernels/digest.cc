#include "kernels/digest.h"

#include <bit>
#include <cstring>

#include "kernels/check.h"
#include "kernels/cpu/families.h"

namespace rollcast {

static_assert(std::endian::native == std::endian::little);

uint64_t DigestSum(const void* data, size_t bytes, size_t offset) {
  RC_CHECK_EQ(offset % 8, 0u);
  const auto* at = static_cast<const unsigned char*>(data);
  const size_t words = bytes / 8;
  const uint64_t first = offset / 8;
  uint64_t sum = cpu::ProcessorKernels().digest(at, static_cast<int64_t>(words), DigestKey(first));
  if (bytes % 8 != 0) {
    uint64_t word = 0;
    std::memcpy(&word, at + 8 * words, bytes % 8);
    sum += DigestWord(word, first + words);
  }
  return sum;
}

}  // namespace rollcast
