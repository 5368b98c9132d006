// Products through wgmma: weights as the 64-row operand, tokens as the N side, both brought by
// tensor copies.
//
// A CTA owns `warpgroups` * 64 rows of w and one tile of tokens; a cluster of `split` CTAs shares
// the slices of K. The producer warp asks for the weights of all free stages before it waits for
// the kernel that makes the tokens.
#include <cstdio>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace rollcast::cuda {

namespace {

constexpr int kChunk = 64;  // k of a stage: 128 bytes, the width of the swizzle
constexpr int kRowBytes = kChunk * 2;

struct Shape {
  int stages;
  int split;
};

__device__ __forceinline__ bool Inactive(const LinearParams& p, int t) {
  return p.slot != nullptr && p.slot[t] < 0;
}

template <int kTokens, int kWarpgroups, Epilogue kEpilogue>
struct Finish {
  // `value` of weight row n (for kGated: gate and up of intermediate row n) and token t.
  static __device__ __forceinline__ void One(const LinearParams& p, int n, int t, float value) {
    if (n >= p.N || t >= p.rows || Inactive(p, t)) return;
    if (p.bias != nullptr) value += __bfloat162float(p.bias[n]);
    float* out = p.out + static_cast<size_t>(t) * p.N + n;
    *out = kEpilogue == Epilogue::kAdd ? *out + value : value;
  }
  static __device__ __forceinline__ void Pair(const LinearParams& p, int n, int t, float gate,
                                              float up) {
    const int half = p.N / 2;
    if (n >= half || t >= p.rows || Inactive(p, t)) return;
    if (p.bias != nullptr) {
      gate += __bfloat162float(p.bias[n]);
      up += __bfloat162float(p.bias[half + n]);
    }
    p.gated[static_cast<size_t>(t) * half + n] =
        __float2bfloat16(gate / (1.0f + __expf(-gate)) * up);
  }
};

template <int kTokens, int kWarpgroups, Epilogue kEpilogue>
__global__ void __launch_bounds__(kWarpgroups * 128 + 32)
    LinearWgmma(const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap x_map, const LinearParams p,
                const Shape shape) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kRows = kWarpgroups * 64;
  constexpr int kWBytes = kRows * kRowBytes, kXBytes = kTokens * kRowBytes;
  constexpr int kStageBytes = kWBytes + kXBytes;  // a multiple of 1024, as the swizzle wants
  constexpr int kRegs = kTokens / 2;
  using F = Finish<kTokens, kWarpgroups, kEpilogue>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int stages = shape.stages, split = shape.split;
  const uint32_t ring = SharedAddress(shared);
  float* const folds =
      reinterpret_cast<float*>(shared + stages * kStageBytes);  // [slice, kRows / split, kTokens]
  const int rows_here = kRows / split;
  const uint32_t bars =
      ring + stages * kStageBytes + (split > 1 ? kSlices * rows_here * kTokens * 4 : 0);
  const auto full = [&](int s) { return bars + s * 8; };
  const auto empty = [&](int s) { return bars + (stages + s) * 8; };

  LetDependentsLaunch();
  const int rank = split > 1 ? static_cast<int>(ClusterRank()) : 0;
  const int tile = blockIdx.x / split;
  const int t0 = blockIdx.y * kTokens;
  const int slices = kSlices / split, first_slice = rank * slices;
  const int g_begin = SliceBegin(first_slice, p.K), g_end = SliceBegin(first_slice + slices, p.K);
  const int chunks = (g_end - g_begin + 3) / 4;
  const int warp = threadIdx.x / 32;

  if (threadIdx.x == kWarpgroups * 128) {
    for (int s = 0; s < stages; ++s) {
      BarrierInit(full(s), 1);
      BarrierInit(empty(s), kWarpgroups);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  if (split > 1) ClusterArrive();

  if (warp == kWarpgroups * 4) {
    if (threadIdx.x % 32 == 0) {
      const auto load_w = [&](int c) {
        const int s = c % stages, k = g_begin * 16 + c * kChunk;
        const uint32_t at = ring + s * kStageBytes;
        BarrierExpect(full(s), kStageBytes);
        if (kEpilogue == Epilogue::kGated)
          TensorLoad4(at, &w_map, full(s), k, 0, 0, tile * (kRows / 16));
        else
          TensorLoad2(at, &w_map, full(s), k, tile * kRows);
      };
      const auto load_x = [&](int c) {
        const int s = c % stages;
        TensorLoad2(ring + s * kStageBytes + kWBytes, &x_map, full(s), g_begin * 16 + c * kChunk,
                    t0);
      };
      const int early = min(stages, chunks);
      for (int c = 0; c < early; ++c) load_w(c);
      WaitForEarlierKernels();
      for (int c = 0; c < early; ++c) load_x(c);
      for (int c = early; c < chunks; ++c) {
        BarrierWait(empty(c % stages), (c / stages - 1) & 1);
        load_w(c);
        load_x(c);
      }
    }
    __syncwarp();
    if (split > 1) {
      ClusterWait();
      ClusterArrive();
      ClusterWait();
    }
    WaitForEarlierKernels();
    return;
  }

  const int group = warp / 4, lane = threadIdx.x % 32;
  float acc[kRegs], sum[kRegs];
#pragma unroll
  for (int i = 0; i < kRegs; ++i) acc[i] = sum[i] = 0.0f;
  int slice = first_slice, slice_end = SliceBegin(first_slice + 1, p.K);
  bool fresh = true, waited = false;

  // Row m of the tile and token column of this thread's accumulator element i.
  const int m0 = group * 64 + (warp % 4) * 16 + lane / 4;
  const auto fold = [&] {
    if (split == 1) {
#pragma unroll
      for (int i = 0; i < kRegs; ++i) sum[i] = slice == 0 ? acc[i] : sum[i] + acc[i];
      return;
    }
    if (!waited) {  // the CTAs of the cluster have all started
      ClusterWait();
      waited = true;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = m0 + 8 * half;
      const uint32_t to = MapShared(
          SharedAddress(folds + (slice * rows_here + m % rows_here) * kTokens), m / rows_here);
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j)
        StoreCluster(to + (8 * j + 2 * (lane % 4)) * 4, acc[4 * j + 2 * half],
                     acc[4 * j + 2 * half + 1]);
    }
  };

  int g = g_begin;
  while (g == slice_end &&
         slice + 1 < first_slice + slices) {  // a slice without a group: K under 128
    fold();
    slice_end = SliceBegin(++slice + 1, p.K);
  }
  for (int c = 0; c < chunks; ++c) {
    const int s = c % stages;
    BarrierWait(full(s), (c / stages) & 1);
    const uint64_t a = TileDescriptor(ring + s * kStageBytes + group * 64 * kRowBytes);
    const uint64_t b = TileDescriptor(ring + s * kStageBytes + kWBytes);
    WgmmaFence();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      if (g >= g_end) break;
      Wgmma(acc, a + 2 * kk, b + 2 * kk, !fresh);
      fresh = false;
      ++g;
      if (g == slice_end) {
        WgmmaCommit();
        WgmmaWait<0>();
        fold();
        fresh = true;
        if (++slice < first_slice + slices) slice_end = SliceBegin(slice + 1, p.K);
        while (slice + 1 < first_slice + slices && g == slice_end) {
#pragma unroll
          for (int i = 0; i < kRegs; ++i) acc[i] = 0.0f;
          fold();
          slice_end = SliceBegin(++slice + 1, p.K);
        }
        WgmmaFence();
      }
    }
    WgmmaCommit();
    WgmmaWait<0>();
    if (threadIdx.x % 128 == 0) BarrierArrive(empty(s));
  }

  if (split == 1) {
    WaitForEarlierKernels();
    if constexpr (kEpilogue == Epilogue::kGated) {
      const int n = tile * (kRows / 2) + group * 32 + (warp % 4) * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          F::Pair(p, n, t0 + 8 * j + 2 * (lane % 4) + i, sum[4 * j + i], sum[4 * j + 2 + i]);
    } else {
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          F::One(p, tile * kRows + m0 + 8 * (i / 2), t0 + 8 * j + 2 * (lane % 4) + i % 2,
                 sum[4 * j + i]);
    }
    return;
  }
  if (!waited) ClusterWait();
  ClusterArrive();
  ClusterWait();
  WaitForEarlierKernels();
  const auto folded = [&](int m, int t) {
    float v = folds[m * kTokens + t];
    for (int s = 1; s < kSlices; ++s) v += folds[(s * rows_here + m) * kTokens + t];
    return v;
  };
  constexpr int kThreads = kWarpgroups * 128;
  if constexpr (kEpilogue == Epilogue::kGated) {
    for (int i = threadIdx.x; i < rows_here / 2 * kTokens; i += kThreads) {
      const int t = i / (rows_here / 2), r = i % (rows_here / 2), m = r / 8 * 16 + r % 8;
      F::Pair(p, tile * (kRows / 2) + rank * (rows_here / 2) + r, t0 + t, folded(m, t),
              folded(m + 8, t));
    }
  } else {
    for (int i = threadIdx.x; i < rows_here * kTokens; i += kThreads) {
      const int t = i / rows_here, m = i % rows_here;
      F::One(p, tile * kRows + rank * rows_here + m, t0 + t, folded(m, t));
    }
  }
#endif
}

template <int kTokens, int kWarpgroups, Epilogue kEpilogue>
void Launch(const LinearParams& p, const LinearTiling& tiling, const CUtensorMap& w_map,
            const CUtensorMap& x_map, bool pdl, cudaStream_t stream) {
  constexpr int kRows = kWarpgroups * 64, kStageBytes = (kRows + kTokens) * kRowBytes;
  const int split = tiling.split;
  const int fold_bytes = split > 1 ? kSlices * (kRows / split) * kTokens * 4 : 0;
  // Two CTAs a multiprocessor where that leaves enough stages.
  const int longest = ((SliceBegin(kSlices, p.K) / split + kSlices + 3) / 4);
  int stages = (110 * 1024 - fold_bytes) / (kStageBytes + 16);
  if (stages < 3) stages = (224 * 1024 - fold_bytes) / (kStageBytes + 16);
  stages = min(stages, max(longest, 1));
  const int bytes = stages * kStageBytes + fold_bytes + stages * 16;
  const auto kernel = LinearWgmma<kTokens, kWarpgroups, kEpilogue>;
  static const bool raised = [&] {
    RC_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024));
    return true;
  }();
  (void)raised;
  const dim3 grid((p.N + kRows - 1) / kRows * split, (p.rows + kTokens - 1) / kTokens);
  LaunchKernel({.grid = grid,
                .block = dim3(kWarpgroups * 128 + 32),
                .shared_bytes = static_cast<size_t>(bytes),
                .cluster = split,
                .pdl = pdl,
                .stream = stream},
               kernel, w_map, x_map, p, Shape{stages, split});
}

template <Epilogue kEpilogue>
void Dispatch(const LinearParams& p, const LinearTiling& t, const CUtensorMap& w_map,
              const CUtensorMap& x_map, bool pdl, cudaStream_t stream) {
  if (t.token_tile == 8) return Launch<8, 1, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (t.token_tile == 16) return Launch<16, 1, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (t.token_tile == 32) return Launch<32, 1, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (t.token_tile == 64) return Launch<64, 1, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  return Launch<128, 2, kEpilogue>(p, t, w_map, x_map, pdl, stream);
}

}  // namespace

LinearTiling ChooseTiling(int rows, int N, int K, Epilogue epilogue) {
  LinearTiling t{};
  t.token_tile = rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : 128;
  t.warpgroups = t.token_tile == 128 ? 2 : 1;
  t.split = 1;
  // Enough CTAs to keep every multiprocessor's loads in flight; a 128-token tile has no room for
  // the folds.
  const int tiles = (N + 63) / 64;
  const int most = epilogue == Epilogue::kGated ? 4 : 8;
  if (t.token_tile < 128)
    while (t.split < most && tiles * t.split < 264 &&
           SliceBegin(kSlices, K) / t.split >= 2 * kSlices / 2)
      t.split *= 2;
  return t;
}

void LaunchLinearWgmma(const LinearParams& p, const LinearTiling& tiling, Epilogue epilogue,
                       const CUtensorMap& w_map, const CUtensorMap& x_map, bool pdl,
                       cudaStream_t stream) {
  switch (epilogue) {
    case Epilogue::kStore:
      return Dispatch<Epilogue::kStore>(p, tiling, w_map, x_map, pdl, stream);
    case Epilogue::kAdd:
      return Dispatch<Epilogue::kAdd>(p, tiling, w_map, x_map, pdl, stream);
    case Epilogue::kGated:
      return Dispatch<Epilogue::kGated>(p, tiling, w_map, x_map, pdl, stream);
  }
}

}  // namespace rollcast::cuda
