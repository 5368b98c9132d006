// Casts between the floating-point types of weights.
#pragma once

#include <cstddef>

#include "kernels/tensor.h"

namespace rollcast {

/// True for kF32, kF16 and kBF16.
bool IsWeightType(DType dtype);

/// Casts `elements` values to the nearest value of `to_dtype`, ties to even; NaN stays NaN. Both
/// types must be weight types; the ranges do not overlap.
void CastWeights(const void* from, DType from_dtype, void* to, DType to_dtype, size_t elements);

/// Index of the first finite value that would become infinite, or -1.
ptrdiff_t FirstOverflow(const void* from, DType from_dtype, DType to_dtype, size_t elements);

}  // namespace rollcast
