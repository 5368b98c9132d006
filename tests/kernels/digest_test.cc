#include "kernels/digest.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/families.h"

namespace rollcast {
namespace {

std::vector<unsigned char> Counting(size_t bytes) {
  std::vector<unsigned char> data(bytes);
  std::iota(data.begin(), data.end(), static_cast<unsigned char>(0));
  return data;
}

TEST(DigestTest, KnownValues) {
  // The first output of SplitMix64 from seed 0, as its authors publish it.
  EXPECT_EQ(DigestWord(0, 0), 0xe220a8397b1dcdafull);
  // From a second implementation, in Python.
  EXPECT_EQ(DigestWord(1, 0), 0xe4d971771b652c20ull);
  EXPECT_EQ(DigestSum("rollcast", 8), 0xdba611274149d126ull);
  EXPECT_EQ(DigestSum(Counting(256).data(), 256), 0x28544a3ac460f7f5ull);
  EXPECT_EQ(DigestSum(Counting(251).data(), 251), 0xe10984d96c8b455dull);
  std::vector<unsigned char> large(1000003);
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<unsigned char>(7 * i + (i >> 9));
  EXPECT_EQ(DigestSum(large.data(), large.size()), 0xfa7c9855e54a33aeull);
  DigestFold fold;
  EXPECT_EQ(fold.value(), 0u);
  fold.Add(0xdba611274149d126ull, 8);
  fold.Add(0xe10984d96c8b455dull, 251);
  EXPECT_EQ(fold.value(), 0x649260bb8c3c4d30ull);
}

TEST(DigestTest, EveryInstructionSetGivesTheSameSum) {
  const cpu::CpuAxes processor = cpu::ThisProcessor();
  const std::vector<unsigned char> data = Counting(8 * 203 + 3);
  for (int place = 0; place < cpu::FamilyOf("isa").size(); ++place) {
    if (!cpu::FamilyOf("isa").Fits(place, processor)) continue;
    BackendOptions options;
    options.isa = cpu::FamilyOf("isa").name(place);
    const auto digest = cpu::ChooseKernels(options, processor).all.digest;
    for (const int64_t words : {0, 1, 3, 7, 8, 9, 15, 16, 64, 203}) {
      uint64_t expected = 0;
      for (int64_t i = 0; i < words; ++i) {
        uint64_t word;
        std::memcpy(&word, data.data() + 3 + 8 * i, 8);
        expected += DigestWord(word, 40 + static_cast<uint64_t>(i));
      }
      EXPECT_EQ(digest(data.data() + 3, words, DigestKey(40)), expected)
          << options.isa << " " << words;
    }
  }
}

TEST(DigestTest, NothingIsZeroAndAZeroByteIsNot) {
  EXPECT_EQ(DigestSum(nullptr, 0), 0u);
  EXPECT_EQ(DigestSum("", 1), DigestWord(0, 0));
}

TEST(DigestTest, PiecesAddUpAtAnyAlignment) {
  const std::vector<unsigned char> data = Counting(1003);
  const uint64_t whole = DigestSum(data.data(), data.size());
  std::vector<unsigned char> moved(data.size() + 8);
  for (size_t shift = 0; shift < 8; ++shift) {
    std::memcpy(moved.data() + shift, data.data(), data.size());
    EXPECT_EQ(DigestSum(moved.data() + shift, data.size()), whole);
    for (const size_t cut : {8u, 64u, 1000u})
      EXPECT_EQ(DigestSum(moved.data() + shift, cut) +
                    DigestSum(moved.data() + shift + cut, data.size() - cut, cut),
                whole);
  }
}

TEST(DigestTest, EveryBitAndEveryPlaceCounts) {
  std::vector<unsigned char> data = Counting(64);
  const uint64_t before = DigestSum(data.data(), data.size());
  for (size_t bit = 0; bit < 8 * data.size(); ++bit) {
    data[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    EXPECT_NE(DigestSum(data.data(), data.size()), before) << bit;
    data[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
  }
  std::swap_ranges(data.begin(), data.begin() + 8, data.begin() + 8);
  EXPECT_NE(DigestSum(data.data(), data.size()), before);
}

TEST(DigestTest, TheFoldKnowsOrderAndLengths) {
  const auto fold = [](std::vector<std::pair<uint64_t, uint64_t>> tensors) {
    DigestFold f;
    for (const auto& [sum, bytes] : tensors) f.Add(sum, bytes);
    return f.value();
  };
  EXPECT_NE(fold({{1, 8}, {2, 8}}), fold({{2, 8}, {1, 8}}));
  EXPECT_NE(fold({{1, 8}}), fold({{1, 16}}));
  EXPECT_NE(fold({{1, 8}}), fold({{1, 8}, {0, 0}}));
}

}  // namespace
}  // namespace rollcast
