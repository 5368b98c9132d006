// Products through wgmma: weights as the 64-row operand, tokens as the N side, both brought by
// tensor copies.
//
// A CTA owns `warpgroups` * 64 rows of w and one tile of tokens; a cluster of `split` CTAs shares
// the slices of K. The producer warp asks for the weights of all free stages before it waits for
// the kernel that makes the tokens.
#include <cstdio>

#include "kernels/cuda/cuda_raii.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace rollcast::cuda {

namespace {

struct Shape {
  int stages;
  int split;
  int ring_bytes;   // of the stages
  int fold_bytes;   // of the slices that a cluster's CTAs leave each other; split above 1
  int row_tiles;    // of w
  int token_tiles;  // more than one: split is 1
};

/// What a CTA computes.
struct Tile {
  int rows, tokens;

  // CTAs that run together share both operands in the L2: bands of token tiles, and within a band
  // the token tiles of one row tile after the other.
  __device__ Tile(const Shape& shape) {
    constexpr int kBand = 16;
    if (shape.token_tiles == 1) {
      rows = blockIdx.x / shape.split;
      tokens = 0;
      return;
    }
    const int band = blockIdx.x / (kBand * shape.row_tiles);
    const int place = blockIdx.x - band * kBand * shape.row_tiles;
    const int width = min(kBand, shape.token_tiles - band * kBand);
    rows = place / width;
    tokens = band * kBand + place % width;
  }
};

// Which of a tile's tokens are written: bits, in every lane. Asked for once, since an answer a
// token would make the epilogue a chain of loads.
template <int kTokens>
struct Active {
  uint32_t words[(kTokens + 31) / 32];

  __device__ void Read(const LinearParams& p, int t0) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int w = 0; w < (kTokens + 31) / 32; ++w) {
      const int t = t0 + 32 * w + lane;
      const bool there = 32 * w + lane < kTokens && t < p.rows;
      words[w] = __ballot_sync(~0u, there && (p.slot == nullptr || __ldcg(p.slot + t) >= 0));
    }
  }
  __device__ bool operator()(int token) const {
    uint32_t word = words[0];
#pragma unroll
    for (int w = 1; w < (kTokens + 31) / 32; ++w)
      if (token / 32 == w) word = words[w];
    return word >> (token % 32) & 1;
  }
};

template <Epilogue kEpilogue>
struct Finish {
  static __device__ __forceinline__ float Bias(const LinearParams& p, int n) {
    return p.bias != nullptr && n < p.N ? __bfloat162float(p.bias[n]) : 0.0f;
  }
  // `value` of weight row n and token t; `before` is what `out` held.
  static __device__ __forceinline__ void One(const LinearParams& p, int n, int t, float value,
                                             float bias, float before) {
    if (p.bias != nullptr) value += bias;
    p.out[static_cast<size_t>(t) * p.N + n] = kEpilogue == Epilogue::kAdd ? before + value : value;
  }
  static __device__ __forceinline__ float Before(const LinearParams& p, int n, int t, bool there) {
    return kEpilogue == Epilogue::kAdd && there ? p.out[static_cast<size_t>(t) * p.N + n] : 0.0f;
  }
  // Gate and up of intermediate row n.
  static __device__ __forceinline__ void Pair(const LinearParams& p, int n, int t, float gate,
                                              float up, float gate_bias, float up_bias) {
    if (p.bias != nullptr) {
      gate += gate_bias;
      up += up_bias;
    }
    p.gated[static_cast<size_t>(t) * (p.N / 2) + n] =
        __float2bfloat16(gate / (1.0f + __expf(-gate)) * up);
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Chunks of 64 k in the order they are multiplied; each slice begins a new one.
struct ChunkWalk {
  int K, slice, last, g, end;

  __device__ ChunkWalk(int first, int slices, int k)
      : K(k), slice(first), last(first + slices), g(SliceBegin(first, k)) {
    end = SliceBegin(first + 1, K);
    SkipEmpty();
  }
  __device__ void Next() {
    g += 4;
    SkipEmpty();
  }
  __device__ void SkipEmpty() {
    while (g >= end && slice + 1 < last) {
      g = SliceBegin(++slice, K);
      end = SliceBegin(slice + 1, K);
    }
  }
  __device__ bool Done() const { return g >= end; }
};

/// A place in the ring and which lap it is.
struct RingPlace {
  int stage = 0;
  uint32_t lap = 0;
  __device__ void Next(int stages) {
    if (++stage == stages) {
      stage = 0;
      lap ^= 1;
    }
  }
};

#endif

template <int kTokens, int kWarpgroups, Epilogue kEpilogue>
__global__ void __launch_bounds__(kWarpgroups * 128 + 32)
    LinearWgmma(const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap x_map, const LinearParams p,
                const Shape shape) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kRows = kWarpgroups * 64;
  constexpr int kWBytes = kRows * kChunkRow, kXBytes = kTokens * kChunkRow;
  constexpr int kStageBytes = kWBytes + kXBytes;  // a multiple of 1024, as the swizzle wants
  constexpr int kRegs = kTokens / 2;
  using F = Finish<kEpilogue>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int stages = shape.stages, split = shape.split;
  const uint32_t ring = SharedAddress(shared);
  const uint32_t folds = ring + shape.ring_bytes, bars = folds + shape.fold_bytes;
  const auto full = [&](int s) { return bars + s * 8; };
  const auto empty = [&](int s) { return bars + (stages + s) * 8; };

  LetDependentsLaunch();
  const int rank = blockIdx.x % split;  // in the cluster
  const Tile where(shape);
  const int tile = where.rows, t0 = where.tokens * kTokens;
  const int slices = kSlices / split, first_slice = rank * slices;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // known to be uniform

  if (threadIdx.x == kWarpgroups * 128) {
    for (int s = 0; s < stages; ++s) {
      BarrierInit(full(s), 1);
      BarrierInit(empty(s), kWarpgroups);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  if (split > 1) ClusterArrive();  // waited for before a store to another CTA: it must run by then

  if (warp == kWarpgroups * 4) {
    if (threadIdx.x % 32 == 0) {
      const bool once = shape.token_tiles == 1;  // weights that no other tile of tokens reads
      const uint64_t policy = EvictFirst();
      const auto load_w = [&](const ChunkWalk& walk, int s) {
        const int k = walk.g * 16;
        const uint32_t at = ring + s * kStageBytes;
        BarrierExpect(full(s), kStageBytes);
        if constexpr (kEpilogue == Epilogue::kGated) {
          const int row = tile * (kRows / 16);
          if (once)
            TensorLoad4(at, &w_map, full(s), k, 0, 0, row, policy);
          else
            TensorLoad4(at, &w_map, full(s), k, 0, 0, row);
        } else {
          constexpr int kBox = WeightBox(kWarpgroups);
#pragma unroll
          for (int r = 0; r < kRows; r += kBox) {
            const uint32_t to = at + r * kChunkRow;
            if (once)
              TensorLoad2(to, &w_map, full(s), k, tile * kRows + r, policy);
            else
              TensorLoad2(to, &w_map, full(s), k, tile * kRows + r);
          }
        }
      };
      const auto load_x = [&](const ChunkWalk& walk, int s) {
        TensorLoad2(ring + s * kStageBytes + kWBytes, &x_map, full(s), walk.g * 16, t0);
      };
      ChunkWalk w_walk(first_slice, slices, p.K), x_walk = w_walk;
      int early = 0;
      for (; early < stages && !w_walk.Done(); ++early, w_walk.Next()) load_w(w_walk, early);
      WaitForEarlierKernels();
      for (int s = 0; s < early; ++s, x_walk.Next()) load_x(x_walk, s);
      for (RingPlace place; !w_walk.Done(); w_walk.Next(), place.Next(stages)) {
        BarrierWait(empty(place.stage), place.lap);
        load_w(w_walk, place.stage);
        load_x(w_walk, place.stage);
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
  // Row m0 of the tile, and m0 + 8, are this thread's; `rows_here` are finished by this CTA.
  const int m0 = group * 64 + (warp % 4) * 16 + lane / 4, rows_here = kRows / split;
  // A slice, [rows_here, pitch] with each CTA of the cluster: [slice, rows_here, pitch] there.
  const auto leave = [&](int slice) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = m0 + 8 * half;
      const uint32_t to =
          MapShared(folds + (slice * rows_here + m % rows_here) * FoldPitch(kTokens) * 4,
                    m / rows_here) +
          lane % 4 * 8;
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j)
        StoreCluster(to + 8 * j * 4, acc[4 * j + 2 * half], acc[4 * j + 2 * half + 1]);
    }
  };
  // The outputs of this thread in a split tile, and what they are added to. Asked for before the
  // products where it can be, so that no wait for memory follows the last of them.
  constexpr int kThreads = kWarpgroups * 128;
  constexpr int kMost = (kRegs + 1) / 2;  // two CTAs sharing a tile
  const int shift = __ffs(rows_here) - 1, n0 = tile * kRows + rank * rows_here;
  const auto row_of = [&](int j) { return (threadIdx.x + j * kThreads) & (rows_here - 1); };
  const auto token_of = [&](int j) {
    return static_cast<int>(threadIdx.x + j * kThreads) >> shift;
  };
  constexpr bool kEarly = kTokens <= 64;  // beyond it there are no registers to keep answers in
  const bool is_old = kEarly && p.slot_is_old;
  float bias[2];
  const auto gated_row = [&] { return tile * (kRows / 2) + m0 / 16 * 8 + lane / 4; };
  const auto read_bias = [&] {
    if (split > 1) {
      bias[0] = bias[1] = F::Bias(p, n0 + row_of(0));  // the only row of this thread
    } else if constexpr (kEpilogue == Epilogue::kGated) {
      bias[0] = F::Bias(p, gated_row());
      bias[1] = F::Bias(p, p.N / 2 + gated_row());
    } else {
      bias[0] = F::Bias(p, tile * kRows + m0);
      bias[1] = F::Bias(p, tile * kRows + m0 + 8);
    }
  };
  if constexpr (kEarly) read_bias();
  Active<kTokens> active;
  [[maybe_unused]] float before[kMost];
  const auto read_before = [&] {
    if constexpr (kEpilogue == Epilogue::kAdd && CanSplit(kTokens, kWarpgroups)) {
#pragma unroll
      for (int j = 0; j < kMost; ++j) {
        const int t = token_of(j), n = n0 + row_of(j);
        before[j] = F::Before(p, n, t0 + t, t < kTokens && n < p.N && active(t));
      }
    }
  };
  if (is_old) {
    active.Read(p, t0);
    if (split > 1) {
      WaitForEarlierKernels();
      read_before();
    }
  }
  RingPlace place;
  const uint32_t a0 = ring + group * 64 * kChunkRow, b0 = ring + kWBytes;
  const bool releases = threadIdx.x % 128 == 0;
  for (int slice = 0; slice < slices; ++slice) {
    int left = SliceBegin(first_slice + slice + 1, p.K) - SliceBegin(first_slice + slice, p.K);
    int held = -1, more = 0;  // a stage that is still being multiplied
    if (left == 0) {
#pragma unroll
      for (int i = 0; i < kRegs; ++i) acc[i] = 0.0f;
    }
    for (; left > 0; left -= 4) {
      BarrierWait(full(place.stage), place.lap);
      const uint64_t a = TileDescriptor(a0 + place.stage * kStageBytes);
      const uint64_t b = TileDescriptor(b0 + place.stage * kStageBytes);
      if (left >= 4) {
        WgmmaFence();
        Wgmma(acc, a, b, more);
        Wgmma(acc, a + 2, b + 2, 1);
        Wgmma(acc, a + 4, b + 4, 1);
        Wgmma(acc, a + 6, b + 6, 1);
        WgmmaCommit();
      } else {
        for (int kk = 0; kk < left; ++kk) {
          WgmmaFence();
          Wgmma(acc, a + 2 * kk, b + 2 * kk, more | kk);
          WgmmaCommit();
        }
      }
      WgmmaWait<1>();
      if (releases && held >= 0) BarrierArrive(empty(held));
      more = 1;
      held = place.stage;
      place.Next(stages);
    }
    WgmmaWait<0>();
    if (releases && held >= 0) BarrierArrive(empty(held));
    if (split == 1) {
#pragma unroll
      for (int i = 0; i < kRegs; ++i) sum[i] = slice == 0 ? acc[i] : sum[i] + acc[i];
    } else if constexpr (CanSplit(kTokens, kWarpgroups)) {
      // While the next slice's stages arrive.
      if (slice == 0) ClusterWait();
      leave(first_slice + slice);
    }
  }
  if (split > 1) ClusterArrive();

  WaitForEarlierKernels();
  if (!is_old) active.Read(p, t0);
  if constexpr (!kEarly) read_bias();
  if (split == 1) {
    if constexpr (kEpilogue == Epilogue::kGated) {
      const int n = gated_row();
      if (n >= p.N / 2) return;
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int t = 8 * j + 2 * (lane % 4) + i;
          if (active(t))
            F::Pair(p, n, t0 + t, sum[4 * j + i], sum[4 * j + 2 + i], bias[0], bias[1]);
        }
    } else {
      // Reads before the first write, as many as there are registers for.
      constexpr int kTogether = kTokens < 64 ? kTokens / 8 : kWarpgroups < 3 ? 8 : 4;
#pragma unroll
      for (int first = 0; first < kTokens / 8; first += kTogether) {
        float held[kTogether][4];
#pragma unroll
        for (int j = 0; j < kTogether; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int n = tile * kRows + m0 + 8 * (i / 2);
            const int t = 8 * (first + j) + 2 * (lane % 4) + i % 2;
            held[j][i] = F::Before(p, n, t0 + t, n < p.N && active(t));
          }
#pragma unroll
        for (int j = 0; j < kTogether; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int n = tile * kRows + m0 + 8 * (i / 2);
            const int t = 8 * (first + j) + 2 * (lane % 4) + i % 2;
            if (n < p.N && active(t))
              F::One(p, n, t0 + t, sum[4 * (first + j) + i], bias[i / 2], held[j][i]);
          }
      }
    }
    return;
  }

  if constexpr (CanSplit(kTokens, kWarpgroups)) {
    if (!is_old) read_before();
    ClusterWait();
    const float* const left = reinterpret_cast<const float*>(shared + shape.ring_bytes);
    const auto folded = [&](int m, int t) {
      float v = left[m * FoldPitch(kTokens) + t];
#pragma unroll
      for (int s = 1; s < kSlices; ++s) v += left[(s * rows_here + m) * FoldPitch(kTokens) + t];
      return v;
    };
    if constexpr (kEpilogue == Epilogue::kGated) {
      for (int i = threadIdx.x; i < rows_here / 2 * kTokens; i += kThreads) {
        const int t = i / (rows_here / 2), r = i % (rows_here / 2), m = r / 8 * 16 + r % 8;
        const int n = tile * (kRows / 2) + rank * (rows_here / 2) + r;
        if (n < p.N / 2 && active(t))
          F::Pair(p, n, t0 + t, folded(m, t), folded(m + 8, t), F::Bias(p, n),
                  F::Bias(p, p.N / 2 + n));
      }
    } else {
#pragma unroll
      for (int j = 0; j < kMost; ++j) {
        const int t = token_of(j), m = row_of(j), n = n0 + m;
        if (t < kTokens && n < p.N && active(t))
          F::One(p, n, t0 + t, folded(m, t), bias[0],
                 kEpilogue == Epilogue::kAdd ? before[j] : 0.0f);
      }
    }
  }
#endif
}

__global__ void WriteDeviceCode(DeviceCode* out) {
  DeviceCode code;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  code.wgmma = true;
#endif
#if __CUDA_ARCH__ >= 900
  code.waits = true;
#endif
  *out = code;
}

template <int kTokens, int kWarpgroups, Epilogue kEpilogue>
void Launch(const LinearParams& p, const LinearTiling& tiling, const CUtensorMap& w_map,
            const CUtensorMap& x_map, bool pdl, cudaStream_t stream) {
  const LinearPlan plan = PlanLinear(tiling, p.rows, p.N, p.K);
  const auto kernel = LinearWgmma<kTokens, kWarpgroups, kEpilogue>;
  static const bool raised = [&] {
    RC_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    return true;
  }();
  (void)raised;
  LaunchKernel({.grid = dim3(static_cast<unsigned>(plan.ctas)),
                .block = dim3(kWarpgroups * 128 + 32),
                .shared_bytes = static_cast<size_t>(plan.shared_bytes),
                .cluster = tiling.split,
                .pdl = pdl,
                .stream = stream},
               kernel, w_map, x_map, p,
               Shape{plan.stages, tiling.split, plan.ring_bytes, plan.fold_bytes, plan.row_tiles,
                     plan.token_tiles});
}

template <Epilogue kEpilogue>
void Dispatch(const LinearParams& p, const LinearTiling& t, const CUtensorMap& w_map,
              const CUtensorMap& x_map, bool pdl, cudaStream_t stream) {
  const auto is = [&](int tokens, int warpgroups) {
    return t.token_tile == tokens && t.warpgroups == warpgroups;
  };
  if (is(8, 1)) return Launch<8, 1, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (is(8, 2)) return Launch<8, 2, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (is(16, 1)) return Launch<16, 1, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (is(16, 2)) return Launch<16, 2, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (is(32, 1)) return Launch<32, 1, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (is(32, 2)) return Launch<32, 2, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (is(64, 1)) return Launch<64, 1, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (is(64, 2)) return Launch<64, 2, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (is(64, 3)) return Launch<64, 3, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (is(64, 4)) return Launch<64, 4, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (is(64, 5)) return Launch<64, 5, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  if (is(128, 2)) return Launch<128, 2, kEpilogue>(p, t, w_map, x_map, pdl, stream);
  RC_CHECK(is(128, 3), "no kernel for this tiling");
  return Launch<128, 3, kEpilogue>(p, t, w_map, x_map, pdl, stream);
}

}  // namespace

DeviceCode CodeOfDevice() {
  void* out = nullptr;
  RC_CUDA(cudaMalloc(&out, sizeof(DeviceCode)));
  const Owned<void*, cudaFree> memory(out);
  LaunchKernel({.grid = dim3(1), .block = dim3(1)}, WriteDeviceCode, static_cast<DeviceCode*>(out));
  DeviceCode code;
  RC_CUDA(cudaMemcpy(&code, out, sizeof(code), cudaMemcpyDeviceToHost));
  return code;
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
