#include "kernels/float_convert.h"

#include <cmath>
#include <cstring>

namespace rollcast {

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
