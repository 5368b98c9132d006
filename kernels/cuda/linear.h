// y = x w^T on the device, and what is done with y.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace rollcast::cuda {

enum class Epilogue : int {
  kStore,  // out[row, n] = y + bias
  kAdd,    // out[row, n] += y + bias
  kGated,  // gated[row, n] = silu(y[n]) * y[n + N / 2], w holding gate rows, then up rows
};

/// Accumulation order of every product, whatever the kernel: k in groups of 16 in order; ceil(K /
/// 16) groups cut into 8 contiguous slices, slice i being groups [i G / 8, (i + 1) G / 8); each
/// slice accumulated from zero, the slices folded left to right. So a row's bits do not depend on
/// the batch, the tile or the kernel.
struct LinearParams {
  const __nv_bfloat16* x = nullptr;     // [rows, K]
  const __nv_bfloat16* w = nullptr;     // [N, K]
  const __nv_bfloat16* bias = nullptr;  // [N] or null
  float* out = nullptr;                 // kStore, kAdd: [rows, N]
  __nv_bfloat16* gated = nullptr;       // kGated: [rows, N / 2]
  const int32_t* slot =
      nullptr;  // [rows] -1 = an inactive row, which is not written; null: all are active
  int rows = 0;
  int N = 0;
  int K = 0;
};

constexpr int kSlices = 8;

__host__ __device__ constexpr int SliceBegin(int slice, int K) {
  return slice * ((K + 15) / 16) / kSlices;
}

/// How the wgmma kernel is cut up for one product.
struct LinearTiling {
  int token_tile;  // 8, 16, 32, 64 or 128 rows of x a CTA
  int warpgroups;  // 64 rows of w each
  int split;       // CTAs of a cluster that share the 8 slices: 1, 4 or 8
  int shared_kib;  // of shared memory for the stages of a CTA
};

/// Rows of one tensor copy of weights; at most 256 are allowed.
constexpr int WeightBox(int warpgroups) { return warpgroups <= 4 ? 64 * warpgroups : 64; }

LinearTiling ChooseTiling(int rows, int N, int K, Epilogue epilogue);

/// Whether the code that the current device runs has wgmma: a Hopper that runs a build for sm_80 or
/// sm_90 has not. Throws CudaError when the build has no code for the device.
bool HasWgmma();

/// Where HasWgmma(); K a multiple of 8 (16-byte rows), x and w aligned to 16 bytes, and for kGated
/// N a multiple of 16. `w_map` and `x_map` are made by MakeWeightMap and MakeTokenMap for this
/// tiling.
void LaunchLinearWgmma(const LinearParams& p, const LinearTiling& tiling, Epilogue epilogue,
                       const CUtensorMap& w_map, const CUtensorMap& x_map, bool pdl,
                       cudaStream_t stream);

/// Any K, any alignment, sm_80 and up; slow.
void LaunchLinearGeneric(const LinearParams& p, Epilogue epilogue, bool pdl, cudaStream_t stream);

}  // namespace rollcast::cuda
