// A warp owns 16 rows, a row being one query head at one position, and runs the same instructions
// over a slice whoever its neighbours are. The query heads that share a KV head are neighbouring
// rows, so decode reads KV once a group.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/ptx.cuh"

namespace rollcast::cuda {

using bf16 = __nv_bfloat16;

constexpr int kTile = kAttentionSlice;  // KV tokens in shared memory at a time
static_assert(kTile == 64);

/// What the attention kernels are given.
struct Params {
  RaggedBatch batch;
  SlotState slots;
  const bf16* k;  // of this layer
  const bf16* v;
  int page_size, num_kv_heads, num_heads, head_dim, window;
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
__device__ __forceinline__ int FirstSlice(int position, int window) {
  return window == 0 ? 0 : max(0, position - window + 1) / kTile;
}
// What exponents are taken against: an empty maximum must not give inf - inf.
__device__ __forceinline__ float Base(float max) { return max == -INFINITY ? 0.0f : max; }

/// total, then next: running maximum (of scores times log2 e) and sum of one row; `a` and `b` are
/// what the two sides' weighted V are multiplied by.
__device__ __forceinline__ void FoldRow(float& max, float& sum, float next_max, float next_sum,
                                        float& a, float& b) {
  const float top = fmaxf(max, next_max), base = Base(top);
  a = exp2f(max - base);
  b = exp2f(next_max - base);
  max = top;
  sum = __fmaf_rn(sum, a, __fmul_rn(next_sum, b));
}
__device__ __forceinline__ float FoldValue(float acc, float a, float next, float b) {
  return __fmaf_rn(acc, a, __fmul_rn(next, b));
}

/// Two rows of a warp's tile (lane / 4 and that plus 8): maximum, sum and weighted V.
template <int kDim>
struct State {
  float max[2], sum[2];
  float acc[kDim / 8][4];

  __device__ void Reset() {
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
    ResetValues();
  }
  __device__ void ResetValues() {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
  }
  /// this = this, then `next`.
  __device__ void Fold(const State& next) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float a, b;
      FoldRow(max[h], sum[h], next.max[h], next.sum[h], a, b);
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i)
          acc[n][i] = FoldValue(acc[n][i], a, next.acc[n][i], b);
    }
  }
};

/// kPadded: p.head_dim is below kDim or its rows are not whole 16-byte pieces; what is missing
/// reads as zero.
template <int kDim, int kWarps, bool kPadded>
struct Attend {
  static constexpr int kPitch =
      kDim * 2 + 16;  // bytes of a row: eight rows of 16 bytes touch all banks
  static constexpr int kTileBytes = kTile * kPitch;
  static constexpr int kStageBytes = 2 * kTileBytes;  // K and V

  const Params& p;
  unsigned char* const memory;
  const uint32_t shared;
  int kv_head, slot, row0, group;
  int first_row;        // flattened, of this warp
  int position[2];      // of this thread's rows; -1 = no such row
  int lowest, highest;  // positions of the CTA's rows
  uint32_t q[kDim / 16][4];

  __device__ Attend(const Params& params, unsigned char* smem)
      : p(params), memory(smem), shared(SharedAddress(smem)) {}

  __device__ int Dim() const { return kPadded ? p.head_dim : kDim; }

  // False when the tile of rows has none.
  __device__ bool Begin(int segment, int head, int tile) {
    slot = p.batch.segment_slot[segment];
    if (slot < 0) return false;
    const int row = p.batch.segment_begin[segment];
    const int rows = p.batch.segment_begin[segment + 1] - row;
    group = p.num_heads / p.num_kv_heads;
    const int first = tile * 16 * kWarps;
    if (first >= rows * group) return false;
    const int start = p.batch.position[row];
    if (start < 0) return false;  // stopped
    Begin(slot, row, rows, start, head, first);
    return true;
  }

  // `rows` rows from `row` on, the first at position `start`, flattened row `first` being the
  // CTA's first.
  __device__ void Begin(int of_slot, int row, int rows, int start, int head, int first) {
    slot = of_slot;
    row0 = row;
    kv_head = head;
    group = p.num_heads / p.num_kv_heads;
    lowest = start + first / group;
    highest = start + min(rows - 1, (first + 16 * kWarps - 1) / group);
    first_row = first + static_cast<int>(threadIdx.x) / 32 * 16;
    Position(start, rows);
    LoadQ(row, rows, head);
  }

  __device__ void Position(int start, int rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int f = first_row + lane / 4 + 8 * h;
      position[h] = f < rows * group ? start + f / group : -1;
    }
  }

  __device__ void LoadQ(int row, int rows, int head) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int f = first_row + lane / 4 + 8 * h;
      const bool there = f < rows * group;
      const bf16* from = p.q + (static_cast<size_t>(row + (there ? f / group : 0)) * p.num_heads +
                                head * group + f % group) *
                                   Dim();
#pragma unroll
      for (int kt = 0; kt < kDim / 16; ++kt)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int d = 16 * kt + 8 * i + 2 * (lane % 4);
          uint32_t& to = q[kt][h + 2 * i];
          if constexpr (kPadded) {
            to = Pack(there && d < Dim() ? __bfloat162float(from[d]) : 0.0f,
                      there && d + 1 < Dim() ? __bfloat162float(from[d + 1]) : 0.0f);
          } else {
            to = there ? *reinterpret_cast<const uint32_t*>(from + d) : 0u;
          }
        }
    }
  }

  static constexpr int kRowsEach = kTile / kWarps;  // rows of a tile that a warp brings
  static constexpr int kBlock = kRowsEach < 32 ? kRowsEach : 32;

  /// Where a warp's rows of a tile are: token and page of one row a lane and block.
  struct Rows {
    int token[kRowsEach / kBlock], page[kRowsEach / kBlock];
  };

  // Tokens past `limit` have no page and read as zero.
  __device__ Rows Find(int of_slot, int tile, int limit) const {
    const int32_t* pages = p.slots.page_table + static_cast<size_t>(of_slot) * p.slots.max_pages;
    Rows rows;
#pragma unroll
    for (int i = 0; i < kRowsEach / kBlock; ++i) {
      rows.token[i] = tile * kTile + static_cast<int>(threadIdx.x) / 32 * kRowsEach + i * kBlock +
                      static_cast<int>(threadIdx.x) % kBlock;
      rows.page[i] = rows.token[i] <= limit ? __ldcg(pages + rows.token[i] / p.page_size) : -1;
    }
    return rows;
  }

  // Asks for K or V of `rows`; `at` in the stages.
  __device__ void Load(const bf16* source, const Rows& rows, int head, int at) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < kRowsEach / kBlock; ++b) {
      const int first = static_cast<int>(threadIdx.x) / 32 * kRowsEach + b * kBlock;
      int begin = -1;  // in rows of head_dim
      if (rows.page[b] >= 0)
        begin = (rows.page[b] * p.num_kv_heads + head) * p.page_size + rows.token[b] % p.page_size;
      if constexpr (kPadded) {
        for (int i = lane; i < kBlock * kDim; i += 32) {
          const int row = i / kDim, d = i % kDim;
          const int from = __shfl_sync(~0u, begin, row);
          reinterpret_cast<bf16*>(memory + at + (first + row) * kPitch)[d] =
              from >= 0 && d < Dim() ? source[static_cast<int64_t>(from) * Dim() + d]
                                     : __float2bfloat16(0.0f);
        }
      } else {
        constexpr int kChunks = kDim / 8;
#pragma unroll
        for (int i = 0; i < kBlock * kChunks; i += 32) {
          const int row = (i + lane) / kChunks, chunk = (i + lane) % kChunks;
          const int from = __shfl_sync(~0u, begin, row);
          CopyAsync(shared + at + (first + row) * kPitch + chunk * 16,
                    source + static_cast<int64_t>(max(from, 0)) * kDim + chunk * 8,
                    from < 0 ? 0 : 16);
        }
      }
    }
  }

  __device__ void LoadTile(int tile, int stage) {
    const Rows rows = Find(slot, tile, highest);
    Load(p.k, rows, kv_head, stage * kStageBytes);
    Load(p.v, rows, kv_head, stage * kStageBytes + kTileBytes);
    CommitCopies();
  }

  using Scores = float[kTile / 8][4];

  __device__ void Score(int stage, Scores& s) {
    const int lane = threadIdx.x % 32;
    const uint32_t k = shared + stage * kStageBytes;
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
  }

  // Scores into weights; the slice's maximum and sum.
  // With `few`, rows 8 to 15 of the warp are not there.
  __device__ void Weigh(int tile, Scores& s, State<kDim>& state, bool few = false) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (h == 1 && few) {
#pragma unroll
        for (int j = 0; j < kTile / 8; ++j) s[j][2] = s[j][3] = 0.0f;
        state.max[1] = -INFINITY;
        state.sum[1] = 0.0f;
        break;
      }
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
      top = MaxQuad(top);
      const float base = Base(top);
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
      state.sum[h] = SumQuad(sum);
    }
  }

  // Tokens that a query does not see have the weight 0. So where V of one is not finite, as with
  // weights that hold NaN, queries that share its slice are lost, too; the processor's kernels do
  // not touch it.
  __device__ void Gather(int stage, const Scores& s, State<kDim>& state) {
    const int lane = threadIdx.x % 32;
    const uint32_t v = shared + stage * kStageBytes + kTileBytes;
    state.ResetValues();
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

  // All slices that a row of the CTA sees, one after the other.
  __device__ void All(State<kDim>& total) {
    const int first = FirstSlice(lowest, p.window), last = highest / kTile;
    State<kDim> state;
    total.Reset();
    LoadTile(first, 0);
    for (int tile = first; tile <= last; ++tile) {
      const int stage = (tile - first) % 2;
      if (tile < last) {
        LoadTile(tile + 1, stage ^ 1);
        WaitCopies<1>();
      } else {
        WaitCopies<0>();
      }
      Sync();
      Scores s;
      Score(stage, s);
      Weigh(tile, s, state);
      Gather(stage, s, state);
      Sync();  // before the stage is filled again
      total.Fold(state);
    }
  }

  // each(row h of the two, its query head, d, value d and value d + 1): all of this thread's.
  template <class Each>
  __device__ void Values(const State<kDim>& state, Each each) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (position[h] < 0) continue;
      const int f = first_row + lane / 4 + 8 * h;
      const size_t head =
          static_cast<size_t>(row0 + f / group) * p.num_heads + kv_head * group + f % group;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        each(h, head, 8 * n + 2 * (lane % 4), state.acc[n][2 * h], state.acc[n][2 * h + 1]);
    }
  }

  static __device__ void Sync() {
    if (kWarps == 1)
      __syncwarp();
    else
      __syncthreads();
  }
};

}  // namespace rollcast::cuda
