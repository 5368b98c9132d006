#include "kernels/float_convert.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace rollcast {
uint16_t FloatToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);  // keeps it a NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t FloatToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000) {
    // Below 2^-14 float16 counts in steps of 2^-24. Adding 0.5, whose float32 neighbours are 2^-24
    // apart, rounds to such a step; the steps are then the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
  }
  const uint32_t rebased = magnitude - 0x38000000;  // exponent bias 127 to 15
  return sign | static_cast<uint16_t>((rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
}

float F16ToFloat(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00)  // infinity and NaN
    return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude < 0x400) {  // steps of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000));
}

namespace {

// One struct a dtype, so that the loops below are compiled for each pair.
struct F32 {
  float bits;
  static F32 From(float value) { return {value}; }
  float ToFloat() const { return bits; }
};
struct Bf16 {
  uint16_t bits;
  static Bf16 From(float value) { return {FloatToBf16(value)}; }
  float ToFloat() const { return Bf16ToFloat(bits); }
};
struct F16 {
  uint16_t bits;
  static F16 From(float value) { return {FloatToF16(value)}; }
  float ToFloat() const { return F16ToFloat(bits); }
};

template <class Visitor>
bool WithDType(DType dtype, Visitor visit) {
  switch (dtype) {
    case DType::kF32:
      return visit(F32{});
    case DType::kBF16:
      return visit(Bf16{});
    default:
      return visit(F16{});
  }
}

}  // namespace

bool ConvertFloats(const void* from, DType from_dtype, void* to, DType to_dtype, size_t count) {
  RC_CHECK(IsWeightDType(from_dtype) && IsWeightDType(to_dtype), Name(from_dtype), " to ",
           Name(to_dtype));
  if (from_dtype == to_dtype) {
    if (count == 0) return true;  // memcpy must not see the null of an empty range
    std::memcpy(to, from, count * SizeOf(to_dtype));
    return true;
  }
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  return WithDType(from_dtype, [&](auto from_type) {
    return WithDType(to_dtype, [&](auto to_type) {
      using From = decltype(from_type);
      using To = decltype(to_type);
      bool in_range = true;
      for (size_t i = 0; i < count; ++i) {
        From value;
        std::memcpy(&value, source + i * sizeof(From), sizeof(From));
        const To stored = To::From(value.ToFloat());
        std::memcpy(target + i * sizeof(To), &stored, sizeof(To));
        in_range &= std::isfinite(stored.ToFloat()) || !std::isfinite(value.ToFloat());
      }
      return in_range;
    });
  });
}

}  // namespace rollcast
