#include "kernels/float_convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace rollcast {
namespace {

TEST(FloatConvertTest, EveryHalfSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (std::isnan(F16ToFloat(half)))
      EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(F16ToFloat(half)))));
    else
      ASSERT_EQ(FloatToF16(F16ToFloat(half)), half);
    if (std::isnan(Bf16ToFloat(half)))
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(Bf16ToFloat(half)))));
    else
      ASSERT_EQ(FloatToBf16(Bf16ToFloat(half)), half);
  }
}

TEST(FloatConvertTest, KnownHalves) {
  EXPECT_EQ(F16ToFloat(0x3c00), 1.0f);
  EXPECT_EQ(F16ToFloat(0xc000), -2.0f);
  EXPECT_EQ(F16ToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(F16ToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(F16ToFloat(0x0400), 0x1p-14f);
  EXPECT_EQ(F16ToFloat(0xfc00), -std::numeric_limits<float>::infinity());
}

TEST(FloatConvertTest, RoundsToTheNearestAndTiesToEven) {
  // Between every two neighbours, normal and subnormal: the middle goes to the even one, a little
  // to either side goes to the nearer.
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    const float low = F16ToFloat(half), high = F16ToFloat(static_cast<uint16_t>(half + 1));
    const float middle = low + (high - low) / 2;  // exact: float32 has more bits
    ASSERT_EQ(FloatToF16(middle), half % 2 == 0 ? half : half + 1) << half;
    ASSERT_EQ(FloatToF16(std::nextafter(middle, low)), half);
    ASSERT_EQ(FloatToF16(std::nextafter(middle, high)), half + 1);
  }
  for (uint32_t half = 0; half < 0x7f7f; ++half) {
    const auto middle = std::bit_cast<float>(half << 16 | 0x8000);
    ASSERT_EQ(FloatToBf16(middle), half % 2 == 0 ? half : half + 1);
    ASSERT_EQ(FloatToBf16(std::bit_cast<float>(half << 16 | 0x7fff)), half);
    ASSERT_EQ(FloatToBf16(std::bit_cast<float>(half << 16 | 0x8001)), half + 1);
  }
}

TEST(FloatConvertTest, TooLargeIsInfiniteAndReported) {
  EXPECT_EQ(FloatToF16(65519.996f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
  std::vector<float> from{1.0f, std::numeric_limits<float>::infinity()};
  std::vector<uint16_t> to(2);
  EXPECT_TRUE(ConvertFloats(from.data(), DType::kF32, to.data(), DType::kF16, 2));
  from[0] = 1e6f;
  EXPECT_FALSE(ConvertFloats(from.data(), DType::kF32, to.data(), DType::kF16, 2));
  EXPECT_TRUE(ConvertFloats(from.data(), DType::kF32, to.data(), DType::kBF16, 2));
}

TEST(FloatConvertTest, AnEmptyRangeMayBeNull) {
  EXPECT_TRUE(ConvertFloats(nullptr, DType::kF32, nullptr, DType::kF32, 0));
  EXPECT_TRUE(ConvertFloats(nullptr, DType::kF32, nullptr, DType::kF16, 0));
}

TEST(FloatConvertTest, ConvertsBetweenAllPairsAtAnyAlignment) {
  const std::vector<float> values{0.5f, -3.0f, 0.0f, 1024.0f};  // exact in all three
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  for (DType from : dtypes) {
    for (DType to : dtypes) {
      std::vector<std::byte> a(17), b(17);
      std::vector<float> back(4);
      ASSERT_TRUE(ConvertFloats(values.data(), DType::kF32, a.data() + 1, from, 4));
      ASSERT_TRUE(ConvertFloats(a.data() + 1, from, b.data() + 1, to, 4));
      ASSERT_TRUE(ConvertFloats(b.data() + 1, to, back.data(), DType::kF32, 4));
      EXPECT_EQ(back, values) << Name(from) << " to " << Name(to);
    }
  }
}

}  // namespace
}  // namespace rollcast
