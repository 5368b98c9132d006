// One kernel for prefill and decode: a warp owns 16 rows, a row being one query head at one
// position, and runs the same instructions over a slice whoever its neighbours are. The query heads
// that share a KV head are neighbouring rows, so decode reads KV once a group.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace rollcast::cuda {

namespace {

using bf16 = __nv_bfloat16;

constexpr int kTile = 64;  // KV tokens in shared memory at a time
static_assert(kAttentionSlice % kTile == 0);

struct Params {
  RaggedBatch batch;
  SlotState slots;
  const bf16* k;  // of this layer
  const bf16* v;
  int page_size, num_kv_heads, num_heads, window;
  float scale_log2;
  const bf16* q;
  bf16* out;
};

__device__ __forceinline__ void CopyAsync(uint32_t shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void LoadMatrix4(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ void LoadMatrix4T(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ uint32_t Pack(float a, float b) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ float MaxQuad(float v) {
  v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
  return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
__device__ __forceinline__ float SumQuad(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}
// What exponents are taken against: an empty maximum must not give inf - inf.
__device__ __forceinline__ float Base(float max) { return max == -INFINITY ? 0.0f : max; }

/// Two rows of a warp's tile (lane / 4 and that plus 8): running maximum (of scores times log2 e),
/// sum and weighted V.
template <int kDim>
struct State {
  float max[2], sum[2];
  float acc[kDim / 8][4];

  __device__ void Reset() {
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
  }
  /// this = this, then `next`.
  __device__ void Fold(const State& next) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float top = fmaxf(max[h], next.max[h]), base = Base(top);
      const float a = exp2f(max[h] - base), b = exp2f(next.max[h] - base);
      max[h] = top;
      sum[h] = __fmaf_rn(sum[h], a, __fmul_rn(next.sum[h], b));
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i)
          acc[n][i] = __fmaf_rn(acc[n][i], a, __fmul_rn(next.acc[n][i], b));
    }
  }
};

template <int kDim>
constexpr int kFragment = (kDim / 8 * 4 + 4) * 32;

template <int kDim, int kWarps>
struct Attend {
  static constexpr int kPitch =
      kDim * 2 + 16;  // bytes of a row: eight rows of 16 bytes touch all banks
  static constexpr int kTileBytes = kTile * kPitch;
  static constexpr int kSharedBytes = 4 * kTileBytes;  // K and V, two stages

  const Params& p;
  const uint32_t shared;
  int segment, kv_head, slot, rows, row0, group;
  int first_row;        // flattened, of this warp
  int position[2];      // of this thread's rows; -1 = no such row
  int lowest, highest;  // positions of the CTA's rows
  uint32_t q[kDim / 16][4];

  __device__ Attend(const Params& params, uint32_t smem) : p(params), shared(smem) {}

  // False when the tile has no row.
  __device__ bool Begin(int s, int head, int tile) {
    segment = s;
    kv_head = head;
    group = p.num_heads / p.num_kv_heads;
    slot = p.batch.segment_slot[segment];
    if (slot < 0) return false;
    row0 = p.batch.segment_begin[segment];
    rows = p.batch.segment_begin[segment + 1] - row0;
    const int first = tile * 16 * kWarps;
    if (first >= rows * group) return false;
    const int start = p.batch.position[row0];
    if (start < 0) return false;  // stopped
    lowest = start + first / group;
    highest = start + min(rows - 1, (first + 16 * kWarps - 1) / group);
    first_row = first + static_cast<int>(threadIdx.x) / 32 * 16;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int f = first_row + lane / 4 + 8 * h;
      const bool there = f < rows * group;
      position[h] = there ? start + f / group : -1;
      const bf16* from = p.q + (static_cast<size_t>(row0 + (there ? f / group : 0)) * p.num_heads +
                                kv_head * group + f % group) *
                                   kDim;
#pragma unroll
      for (int kt = 0; kt < kDim / 16; ++kt)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          q[kt][h + 2 * i] =
              there ? *reinterpret_cast<const uint32_t*>(from + 16 * kt + 8 * i + 2 * (lane % 4))
                    : 0u;
    }
    return true;
  }

  __device__ void LoadTile(int tile, int stage) {
    constexpr int kChunks = kDim / 8;
    const int32_t* pages = p.slots.page_table + static_cast<size_t>(slot) * p.slots.max_pages;
    const uint32_t to = shared + stage * 2 * kTileBytes;
    for (int i = threadIdx.x; i < kTile * kChunks; i += kWarps * 32) {
      const int row = i / kChunks, chunk = i % kChunks, token = tile * kTile + row;
      const bool there = token <= highest;
      size_t at = 0;
      if (there)
        at = ((static_cast<size_t>(pages[token / p.page_size]) * p.num_kv_heads + kv_head) *
                  p.page_size +
              token % p.page_size) *
                 kDim +
             chunk * 8;
      const uint32_t place = to + row * kPitch + chunk * 16;
      CopyAsync(place, p.k + at, there ? 16 : 0);
      CopyAsync(place + kTileBytes, p.v + at, there ? 16 : 0);
    }
    CommitCopies();
  }

  __device__ void Tile(int tile, int stage, State<kDim>& state) {
    const int lane = threadIdx.x % 32;
    const uint32_t k = shared + stage * 2 * kTileBytes, v = k + kTileBytes;
    float s[kTile / 8][4];
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll
    for (int kt = 0; kt < kDim / 16; ++kt)
#pragma unroll
      for (int j = 0; j < kTile / 8; j += 2) {
        // Matrices: tokens 8j.., k lower; 8j.., k upper; 8j + 8.., lower; 8j + 8.., upper.
        uint32_t b[4];
        LoadMatrix4(b,
                    k + (8 * j + lane % 8 + lane / 16 * 8) * kPitch + (kt * 2 + lane / 8 % 2) * 16);
        const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
        Mma(s[j], q[kt], b0);
        Mma(s[j + 1], q[kt], b1);
      }
    float alpha[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int token = tile * kTile + 8 * j + 2 * (lane % 4) + i;
          const bool seen =
              token <= position[h] && (p.window == 0 || token > position[h] - p.window);
          float& x = s[j][2 * h + i];
          x = seen ? __fmul_rn(x, p.scale_log2) : -INFINITY;
          top = fmaxf(top, x);
        }
      top = fmaxf(state.max[h], MaxQuad(top));
      const float base = Base(top);
      alpha[h] = exp2f(state.max[h] - base);
      state.max[h] = top;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = s[j][2 * h + i];
          x = exp2f(x - base);
          sum += x;
        }
      state.sum[h] = __fmaf_rn(state.sum[h], alpha[h], sum);
    }
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) state.acc[n][i] = __fmul_rn(state.acc[n][i], alpha[i / 2]);
#pragma unroll
    for (int kt = 0; kt < kTile / 16; ++kt) {
      const uint32_t a[4] = {Pack(s[2 * kt][0], s[2 * kt][1]), Pack(s[2 * kt][2], s[2 * kt][3]),
                             Pack(s[2 * kt + 1][0], s[2 * kt + 1][1]),
                             Pack(s[2 * kt + 1][2], s[2 * kt + 1][3])};
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 2) {
        // Matrices: tokens lower and upper half of the 16, columns 8n..; then columns 8n + 8...
        uint32_t b[4];
        LoadMatrix4T(b, v + (16 * kt + lane % 16) * kPitch + (n + lane / 16) * 16);
        const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
        Mma(state.acc[n], a, b0);
        Mma(state.acc[n + 1], a, b1);
      }
    }
  }

  __device__ int FirstVisible() const { return p.window == 0 ? 0 : max(0, lowest - p.window + 1); }

  // Slices [from, to) one after the other; `each(slice, state)` gets every slice that any row sees.
  template <class Each>
  __device__ void Slices(int from, int to, State<kDim>& state, Each each) {
    const int first = max(from * kAttentionSlice, FirstVisible()) / kTile;
    const int last = min(to * kAttentionSlice - 1, highest) / kTile;
    if (first > last) return;
    LoadTile(first, 0);
    state.Reset();
    for (int tile = first; tile <= last; ++tile) {
      const int stage = (tile - first) % 2;
      if (tile < last) {
        LoadTile(tile + 1, stage ^ 1);
        WaitCopies<1>();
      } else {
        WaitCopies<0>();
      }
      Sync();
      Tile(tile, stage, state);
      Sync();  // before the stage is filled again
      const int slice = tile * kTile / kAttentionSlice;
      if (tile == last || (tile + 1) * kTile / kAttentionSlice != slice) {
        state.sum[0] = SumQuad(state.sum[0]);
        state.sum[1] = SumQuad(state.sum[1]);
        each(slice, state);
        state.Reset();
      }
    }
  }

  __device__ void Write(const State<kDim>& total) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (position[h] < 0) continue;
      const int f = first_row + lane / 4 + 8 * h;
      bf16* to = p.out + (static_cast<size_t>(row0 + f / group) * p.num_heads + kv_head * group +
                          f % group) *
                             kDim;
      const float inverse = 1.0f / total.sum[h];
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        *reinterpret_cast<uint32_t*>(to + 8 * n + 2 * (lane % 4)) =
            Pack(total.acc[n][2 * h] * inverse, total.acc[n][2 * h + 1] * inverse);
    }
  }

  static __device__ void Sync() {
    if (kWarps == 1)
      __syncwarp();
    else
      __syncthreads();
  }
};

template <int kDim, int kWarps>
__global__ void __launch_bounds__(kWarps * 32) AttentionWhole(const Params p) {
  extern __shared__ __align__(128) unsigned char shared[];
  LetDependentsLaunch();
  WaitForEarlierKernels();
  Attend<kDim, kWarps> attend(p, SharedAddress(shared));
  if (!attend.Begin(blockIdx.z, blockIdx.y, blockIdx.x)) return;
  State<kDim> total, state;
  total.Reset();
  attend.Slices(0, attend.highest / kAttentionSlice + 1, state,
                [&](int, const State<kDim>& slice) { total.Fold(slice); });
  attend.Write(total);
}

template <int kDim>
__global__ void __launch_bounds__(32)
    AttentionSplit(const Params p, const AttentionWork work, const AttentionScratch scratch) {
  extern __shared__ __align__(128) unsigned char shared[];
  LetDependentsLaunch();
  WaitForEarlierKernels();
  const int lane = threadIdx.x;
  const int items = *work.count * p.num_kv_heads;
  Attend<kDim, 1> attend(p, SharedAddress(shared));
  for (int i = blockIdx.x; i < items; i += gridDim.x) {
    const int item = i / p.num_kv_heads, head = i % p.num_kv_heads;
    const int2 what = work.items[item];
    if (!attend.Begin(what.x, head, 0)) continue;
    const int slices = attend.highest / kAttentionSlice + 1;
    State<kDim> state;
    const auto place = [&](int slice) {
      return scratch.partial +
             (static_cast<size_t>(item - what.y + slice) * p.num_kv_heads + head) * kFragment<kDim>;
    };
    bool seen = false;
    attend.Slices(what.y, what.y + 1, state, [&](int, const State<kDim>& slice) {
      seen = true;
      if (slices == 1) {
        State<kDim> total;
        total.Reset();
        total.Fold(slice);
        attend.Write(total);
        return;
      }
      float* to = place(what.y);
      for (int h = 0; h < 2; ++h) {
        to[h * 32 + lane] = slice.max[h];
        to[(2 + h) * 32 + lane] = slice.sum[h];
      }
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) to[(4 + n * 4 + j) * 32 + lane] = slice.acc[n][j];
    });
    if (slices == 1) continue;
    if (!seen) place(what.y)[lane] = place(what.y)[32 + lane] = NAN;  // before the window
    __threadfence();
    __syncwarp();
    int last = 0;
    if (lane == 0)
      last = atomicAdd(scratch.arrived + what.x * p.num_kv_heads + head, 1) == slices - 1;
    last = __shfl_sync(~0u, last, 0);
    if (!last) continue;
    __threadfence();
    State<kDim> total;
    total.Reset();
    for (int s = 0; s < slices; ++s) {
      const float* from = place(s);
      for (int h = 0; h < 2; ++h) {
        state.max[h] = __ldcg(from + h * 32 + lane);
        state.sum[h] = __ldcg(from + (2 + h) * 32 + lane);
      }
      if (isnan(state.max[0])) continue;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) state.acc[n][j] = __ldcg(from + (4 + n * 4 + j) * 32 + lane);
      total.Fold(state);
    }
    attend.Write(total);
    if (lane == 0) scratch.arrived[what.x * p.num_kv_heads + head] = 0;
  }
}

template <int kDim>
void Launch(const AttentionArgs& a, const Params& p, const AttentionWork& work,
            const AttentionScratch& scratch, bool split, int ctas, bool pdl, cudaStream_t stream) {
  using Decode = Attend<kDim, 1>;
  using Prefill = Attend<kDim, 4>;
  static const bool raised = [] {
    RC_CUDA(cudaFuncSetAttribute(AttentionSplit<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 Decode::kSharedBytes));
    RC_CUDA(cudaFuncSetAttribute(AttentionWhole<kDim, 1>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 Decode::kSharedBytes));
    RC_CUDA(cudaFuncSetAttribute(AttentionWhole<kDim, 4>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 Prefill::kSharedBytes));
    return true;
  }();
  (void)raised;
  const int group = a.num_heads / a.kv->num_kv_heads;
  if (split) {
    LaunchKernel({.grid = dim3(ctas),
                  .block = dim3(32),
                  .shared_bytes = Decode::kSharedBytes,
                  .pdl = pdl,
                  .stream = stream},
                 AttentionSplit<kDim>, p, work, scratch);
    return;
  }
  const int rows = a.batch->max_segment_rows * group;
  const int warps = rows <= 16 ? 1 : 4;
  const dim3 grid((rows + 16 * warps - 1) / (16 * warps), a.kv->num_kv_heads,
                  a.batch->num_segments);
  const LaunchShape shape{.grid = grid,
                          .block = dim3(warps * 32),
                          .shared_bytes = Decode::kSharedBytes,
                          .pdl = pdl,
                          .stream = stream};
  if (warps == 1)
    LaunchKernel(shape, AttentionWhole<kDim, 1>, p);
  else
    LaunchKernel(shape, AttentionWhole<kDim, 4>, p);
}

constexpr int kDims[] = {16, 32, 48, 64, 80, 96, 128, 256};

}  // namespace

int AttentionFragment(int head_dim) { return (head_dim / 8 * 4 + 4) * 32; }

bool AttentionSupports(int head_dim) {
  for (int d : kDims)
    if (d == head_dim) return true;
  return false;
}

void LaunchAttention(const AttentionArgs& a, const AttentionWork& work,
                     const AttentionScratch& scratch, bool split, int ctas, bool pdl,
                     cudaStream_t stream) {
  Params p{};
  p.batch = *a.batch;
  p.slots = *a.slots;
  const size_t layer = static_cast<size_t>(a.layer) * a.kv->num_pages * a.kv->page_size *
                       a.kv->num_kv_heads * a.kv->head_dim;
  p.k = static_cast<const bf16*>(a.kv->k) + layer;
  p.v = static_cast<const bf16*>(a.kv->v) + layer;
  p.page_size = a.kv->page_size;
  p.num_kv_heads = a.kv->num_kv_heads;
  p.num_heads = a.num_heads;
  p.window = a.window;
  p.scale_log2 = a.scale * 1.44269504f;
  p.q = static_cast<const bf16*>(a.q);
  p.out = static_cast<bf16*>(a.out);
  switch (a.kv->head_dim) {
    case 16:
      return Launch<16>(a, p, work, scratch, split, ctas, pdl, stream);
    case 32:
      return Launch<32>(a, p, work, scratch, split, ctas, pdl, stream);
    case 48:
      return Launch<48>(a, p, work, scratch, split, ctas, pdl, stream);
    case 64:
      return Launch<64>(a, p, work, scratch, split, ctas, pdl, stream);
    case 80:
      return Launch<80>(a, p, work, scratch, split, ctas, pdl, stream);
    case 96:
      return Launch<96>(a, p, work, scratch, split, ctas, pdl, stream);
    case 128:
      return Launch<128>(a, p, work, scratch, split, ctas, pdl, stream);
    case 256:
      return Launch<256>(a, p, work, scratch, split, ctas, pdl, stream);
  }
  RC_CHECK(false, "head_dim ", a.kv->head_dim);
}

}  // namespace rollcast::cuda
