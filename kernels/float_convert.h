// Conversion between the three float dtypes that weights come in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/tensor.h"

namespace rollcast {

constexpr bool IsWeightDType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

/// Round to nearest, ties to even; NaN stays NaN. float16: above 65519 becomes infinite.
uint16_t FloatToBf16(float value);
uint16_t FloatToF16(float value);
float Bf16ToFloat(uint16_t bits);
float F16ToFloat(uint16_t bits);

/// Converts `count` elements; both dtypes are weight dtypes. The ranges may have any alignment and
/// must not overlap. False when a finite value became infinite.
[[nodiscard]] bool ConvertFloats(const void* from, DType from_dtype, void* to, DType to_dtype,
                                 size_t count);

}  // namespace rollcast
