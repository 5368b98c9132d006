#include "trainer_bridge/weight_cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace rollcast {
namespace {

template <class To, class From>
To CastOne(From value, DType from, DType to) {
  To result{};
  CastWeights(&value, from, &result, to, 1);
  return result;
}
uint16_t ToBF16(float value) { return CastOne<uint16_t>(value, DType::kF32, DType::kBF16); }
uint16_t ToF16(float value) { return CastOne<uint16_t>(value, DType::kF32, DType::kF16); }
float FromF16(uint16_t bits) { return CastOne<float>(bits, DType::kF16, DType::kF32); }
float FromBF16(uint16_t bits) { return CastOne<float>(bits, DType::kBF16, DType::kF32); }

TEST(WeightCast, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(ToBF16(1.0f), 0x3f80);
  EXPECT_EQ(ToBF16(-2.5f), 0xc020);
  EXPECT_EQ(ToBF16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie, even below
  EXPECT_EQ(ToBF16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie, even above
  EXPECT_EQ(ToBF16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(ToBF16(std::bit_cast<float>(0x3f807fffu)), 0x3f80);
  EXPECT_EQ(ToBF16(-0.0f), 0x8000);
  EXPECT_EQ(ToBF16(std::numeric_limits<float>::infinity()), 0x7f80);
  // A NaN whose payload is in the low bits only must not become infinity.
  EXPECT_TRUE(std::isnan(FromBF16(ToBF16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(WeightCast, Float16RoundsToNearestEvenWithSubnormals) {
  EXPECT_EQ(ToF16(1.0f), 0x3c00);
  EXPECT_EQ(ToF16(65504.0f), 0x7bff);
  EXPECT_EQ(ToF16(65519.0f), 0x7bff);
  EXPECT_EQ(ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(ToF16(1.0f + 0x1p-11f), 0x3c00);  // tie, even below
  EXPECT_EQ(ToF16(1.0f + 0x3p-11f), 0x3c02);  // tie, even above
  EXPECT_EQ(ToF16(0x1p-14f), 0x0400);
  EXPECT_EQ(ToF16(0x1p-24f), 0x0001);
  EXPECT_EQ(ToF16(0x1p-25f), 0x0000);  // tie, even below
  EXPECT_EQ(ToF16(0x3p-25f), 0x0002);  // tie, even above
  EXPECT_EQ(ToF16(-0x1p-30f), 0x8000);
  EXPECT_EQ(ToF16(std::bit_cast<float>(0x387fffffu)), 0x0400);  // just below 2^-14 rounds up to it
  EXPECT_TRUE(std::isnan(FromF16(ToF16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(WeightCast, EveryFloat16SurvivesTheWayToFloat32AndBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = FromF16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(ToF16(value), bits);
    const int exponent = static_cast<int>(bits >> 10 & 31);
    if (exponent == 0 || exponent == 31) continue;
    const double expected = std::ldexp(1.0 + (bits & 1023) / 1024.0, exponent - 15);
    ASSERT_EQ(value, static_cast<float>(bits & 0x8000 ? -expected : expected));
  }
  EXPECT_EQ(FromF16(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(FromF16(0x0001), 0x1p-24f);
}

TEST(WeightCast, BetweenTheTwoHalfTypes) {
  EXPECT_EQ(CastOne<uint16_t>(uint16_t{0x3c00}, DType::kF16, DType::kBF16), 0x3f80);
  EXPECT_EQ(CastOne<uint16_t>(uint16_t{0xc020}, DType::kBF16, DType::kF16), 0xc100);
}

TEST(WeightCast, FindsTheFirstValueBeyondTheNewRange) {
  const std::vector<float> values = {1.0f, std::numeric_limits<float>::infinity(), 65519.0f,
                                     -65520.0f, 1e9f};
  EXPECT_EQ(FirstOverflow(values.data(), DType::kF32, DType::kF16, values.size()), 3);
  EXPECT_EQ(FirstOverflow(values.data(), DType::kF32, DType::kBF16, values.size()), -1);
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(FirstOverflow(&largest, DType::kF32, DType::kBF16, 1), 0);
  EXPECT_EQ(FirstOverflow(&largest, DType::kF32, DType::kF32, 1), -1);
}

TEST(WeightCast, UnalignedMemoryIsFine) {
  std::vector<std::byte> bytes(9);
  const float value = 1.5f;
  std::memcpy(bytes.data() + 1, &value, 4);
  uint16_t result = 0;
  CastWeights(bytes.data() + 1, DType::kF32, &result, DType::kBF16, 1);
  EXPECT_EQ(result, 0x3fc0);
}

}  // namespace
}  // namespace rollcast
