#include "engine/float_convert.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace rollcast {
namespace {

float Load(const std::byte* from, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return dtype == DType::kBF16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
}

/// Returns what was stored, as float.
float Store(float value, std::byte* to, DType dtype) {
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, sizeof(value));
    return value;
  }
  const uint16_t bits = dtype == DType::kBF16 ? FloatToBf16(value) : FloatToF16(value);
  std::memcpy(to, &bits, sizeof(bits));
  return dtype == DType::kBF16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
}

}  // namespace

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
  bool exact_range = true;
  for (size_t i = 0; i < count; ++i) {
    const float value = Load(source + i * SizeOf(from_dtype), from_dtype);
    const float stored = Store(value, target + i * SizeOf(to_dtype), to_dtype);
    exact_range &= std::isfinite(stored) || !std::isfinite(value);
  }
  return exact_range;
}

}  // namespace rollcast
