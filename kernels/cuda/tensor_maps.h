// Descriptors of global tensors for the tensor copy engine.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <tuple>

namespace rollcast::cuda {

/// Makes each descriptor once; addresses never move, so none goes stale. Thread-compatible.
class TensorMaps {
 public:
  /// Throws CudaError when the driver has no encoder.
  TensorMaps();

  /// bf16 [rows, K] in boxes of [box_rows, 64], 128-byte swizzle; rows and columns outside read as
  /// zero.
  const CUtensorMap& Matrix(const void* data, int64_t rows, int64_t K, int box_rows);
  /// bf16 [2 * half_rows, K], gate rows, then up rows, in boxes of `groups` times (8 gate rows,
  /// their 8 up rows).
  const CUtensorMap& GateUp(const void* data, int64_t half_rows, int64_t K, int groups);

 private:
  using Key = std::tuple<const void*, int64_t, int64_t, int>;
  void* encode_ = nullptr;
  std::map<Key, CUtensorMap> matrices_, gate_ups_;
};

}  // namespace rollcast::cuda
