#include "trainer_bridge/weight_cast.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace rollcast {
namespace {

struct F32 {
  float value;
  float ToFloat() const { return value; }
  static F32 From(float value) { return {value}; }
};

struct BF16 {
  uint16_t bits;
  float ToFloat() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  static BF16 From(float value) {
    const auto x = std::bit_cast<uint32_t>(value);
    if ((x & 0x7fffffffu) > 0x7f800000u)  // NaN: keep it one, quiet
      return {static_cast<uint16_t>((x >> 16) | 0x40u)};
    return {static_cast<uint16_t>((x + 0x7fffu + ((x >> 16) & 1u)) >> 16)};
  }
};

/// IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits.
struct F16 {
  uint16_t bits;
  float ToFloat() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float32
      const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
      return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
    }
    const uint32_t wide = exponent == 0x1fu ? 0xffu : exponent + (127 - 15);
    return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
  }
  static F16 From(float value) {
    const auto x = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint16_t>((x >> 16) & 0x8000u);
    const uint32_t magnitude = x & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
    if (magnitude >= 0x477ff000u)  // 65520 and above round to infinity
      return {static_cast<uint16_t>(sign | 0x7c00u)};
    if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24; nearbyint rounds to even
      const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
      return {static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)))};
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return {static_cast<uint16_t>(sign | ((rounded - ((127u - 15u) << 23)) >> 13))};
  }
};

template <class From, class To>
void Cast(const void* from, void* to, size_t elements) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  for (size_t i = 0; i < elements; ++i) {  // through memcpy: a trainer's pointer may be unaligned
    From value;
    std::memcpy(&value, source + i * sizeof(From), sizeof(From));
    const To result = To::From(value.ToFloat());
    std::memcpy(target + i * sizeof(To), &result, sizeof(To));
  }
}

template <class From>
ptrdiff_t FindOverflow(const void* from, float limit, size_t elements) {
  const auto* source = static_cast<const std::byte*>(from);
  for (size_t i = 0; i < elements; ++i) {
    From value;
    std::memcpy(&value, source + i * sizeof(From), sizeof(From));
    const float magnitude = std::abs(value.ToFloat());
    if (magnitude >= limit && std::isfinite(magnitude)) return static_cast<ptrdiff_t>(i);
  }
  return -1;
}

template <class Visitor>
auto WithType(DType dtype, Visitor visit) {
  switch (dtype) {
    case DType::kF32:
      return visit(F32{});
    case DType::kF16:
      return visit(F16{});
    case DType::kBF16:
      return visit(BF16{});
    default:
      RC_CHECK(false, "no weight type: ", Name(dtype));
      return visit(F32{});
  }
}

}  // namespace

bool IsWeightType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

void CastWeights(const void* from, DType from_dtype, void* to, DType to_dtype, size_t elements) {
  WithType(from_dtype, [&](auto source) {
    WithType(to_dtype,
             [&](auto target) { Cast<decltype(source), decltype(target)>(from, to, elements); });
  });
}

ptrdiff_t FirstOverflow(const void* from, DType from_dtype, DType to_dtype, size_t elements) {
  if (from_dtype == to_dtype || from_dtype == DType::kF16 || to_dtype == DType::kF32) return -1;
  // The smallest magnitudes that round to infinity: 65520 and 2^128 - 2^119.
  const float limit = to_dtype == DType::kF16 ? 65520.0f : std::bit_cast<float>(0x7f7f8000u);
  return WithType(from_dtype, [&](auto source) {
    return FindOverflow<decltype(source)>(from, limit, elements);
  });
}

}  // namespace rollcast
