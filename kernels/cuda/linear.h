// y = x w^T on the device, and what is done with y.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/linear_tiling.h"

namespace rollcast::cuda {

struct LinearParams {
  const __nv_bfloat16* x = nullptr;     // [rows, K]
  const __nv_bfloat16* w = nullptr;     // [N, K]
  const __nv_bfloat16* bias = nullptr;  // [N] or null
  float* out = nullptr;                 // kStore, kAdd: [rows, N]
  __nv_bfloat16* gated = nullptr;       // kGated: [rows, N / 2]
  const int32_t* slot =
      nullptr;  // [rows] -1 = an inactive row, which is not written; null: all are active
  bool slot_is_old = false;  // AttentionWork::is_old
  int rows = 0;
  int N = 0;
  int K = 0;
};

/// What the code that the current device runs was compiled with, which is not what the device could
/// do: a Hopper that runs a build for sm_80 has neither.
struct DeviceCode {
  bool wgmma = false;
  bool waits = false;  // for earlier kernels, as programmatic dependent launch demands
};
/// Throws CudaError when the build has no code for the device.
DeviceCode CodeOfDevice();

/// Where the conditions of "wgmma" in LinearFamily() hold. `w_map` (GateUp for kGated, else Matrix,
/// in boxes of WeightBox) and `x_map` are TensorMaps' for this tiling.
void LaunchLinearWgmma(const LinearParams& p, const LinearTiling& tiling, Epilogue epilogue,
                       const CUtensorMap& w_map, const CUtensorMap& x_map, bool pdl,
                       cudaStream_t stream);

/// Any K, any alignment, sm_80 and up. No tiles in shared memory, so slow with many tokens.
void LaunchLinearGeneric(const LinearParams& p, Epilogue epilogue, bool pdl, cudaStream_t stream);

}  // namespace rollcast::cuda
