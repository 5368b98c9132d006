// A warp owns 16 rows, a row being one query head at one position, and runs the same instructions
// over a slice whoever its neighbours are. The query heads that share a KV head are neighbouring
// rows, so decode reads KV once a group.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace rollcast::cuda {

namespace {

using bf16 = __nv_bfloat16;

constexpr int kTile = kAttentionSlice;  // KV tokens in shared memory at a time
static_assert(kTile == 64);

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
      rows.page[i] = rows.token[i] <= limit ? pages[rows.token[i] / p.page_size] : -1;
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

template <int kDim, int kWarps, bool kPadded>
__global__ void __launch_bounds__(kWarps * 32) AttentionWhole(const Params p) {
  extern __shared__ __align__(128) unsigned char shared[];
  LetDependentsLaunch();
  WaitForEarlierKernels();
  Attend<kDim, kWarps, kPadded> attend(p, shared);
  if (!attend.Begin(blockIdx.z, blockIdx.y, blockIdx.x)) return;
  State<kDim> total;
  attend.All(total);
  const float inverse[2] = {1.0f / total.sum[0], 1.0f / total.sum[1]};
  attend.Values(total, [&](int h, size_t head, int d, float x, float y) {
    const int dim = attend.Dim();
    bf16* to = p.out + head * dim + d;
    if constexpr (kPadded) {
      if (d < dim) to[0] = __float2bfloat16(x * inverse[h]);
      if (d + 1 < dim) to[1] = __float2bfloat16(y * inverse[h]);
    } else {
      *reinterpret_cast<uint32_t*>(to) = Pack(x * inverse[h], y * inverse[h]);
    }
  });
}

// Pure decode: a CTA computes a slice of one sequence and KV head at a time; FoldSlices follows. K
// of its next item is on the way while it gathers V of this one, and V while it scores K.
template <int kDim, bool kPadded>
__global__ void __launch_bounds__(32)
    AttentionSplit(const Params p, const AttentionWork work, const AttentionScratch scratch) {
  extern __shared__ __align__(128) unsigned char shared[];
  using A = Attend<kDim, 1, kPadded>;
  LetDependentsLaunch();
  WaitForEarlierKernels();
  const int heads = p.num_kv_heads;
  int i = blockIdx.x;
  int4 what = work.items[i / heads];  // there are at least as many items as CTAs in memory
  const int items = *work.count * heads;
  if (i >= items) return;
  const auto find = [&](const A& attend, const int4& item) {  // nothing before the window
    return attend.Find(item.z, item.y, item.y < FirstSlice(item.w, p.window) ? -1 : item.w);
  };
  const auto item_at = [&](int at) {
    return at < items ? work.items[at / heads] : make_int4(0, 0, 0, -1);
  };
  const int step = gridDim.x;
  int4 then = item_at(i + step);
  A attend(p, shared);
  attend.Begin(what.z, what.x, 1, what.w, i % heads, 0);
  {
    const typename A::Rows rows = find(attend, what);
    attend.Load(p.k, rows, i % heads, 0);
    CommitCopies();
    attend.Load(p.v, rows, i % heads, A::kTileBytes);
    CommitCopies();
  }
  while (true) {
    const int next = i + step, next_head = next % heads;
    const bool more = next < items;
    const typename A::Rows rows = find(attend, then);
    const int4 after = item_at(next + step);
    WaitCopies<1>();
    __syncwarp();
    typename A::Scores s;
    attend.Score(0, s);
    __syncwarp();
    if (more) {
      attend.LoadQ(then.x, 1, next_head);
      attend.Load(p.k, rows, next_head, 0);
    }
    CommitCopies();
    State<kDim> state;
    attend.Weigh(what.y, s, state, attend.group <= 8);
    WaitCopies<1>();
    __syncwarp();
    attend.Gather(0, s, state);
    __syncwarp();
    if (more) attend.Load(p.v, rows, next_head, A::kTileBytes);
    CommitCopies();
    const size_t head0 = static_cast<size_t>(attend.row0) * p.num_heads;  // the row's first
    const size_t item = static_cast<size_t>(i / heads) * p.num_heads;
    attend.Values(state, [&](int h, size_t head, int d, float x, float y) {
      const size_t at = item + (head - head0);
      float* to = scratch.values + at * attend.Dim() + d;
      if constexpr (kPadded) {
        if (d < attend.Dim()) to[0] = x;
        if (d + 1 < attend.Dim()) to[1] = y;
      } else {
        *reinterpret_cast<float2*>(to) = make_float2(x, y);
      }
      if (d == 0) scratch.stats[at] = make_float2(state.max[h], state.sum[h]);
    });
    if (!more) break;
    i = next;
    what = then;
    then = after;
    attend.row0 = what.x;
    attend.kv_head = next_head;
    attend.Position(what.w, 1);
  }
}

constexpr int kFoldThreads = 128;

// One thread kEach neighbouring elements of a query head of a sequence.
template <int kEach>
__global__ void __launch_bounds__(kFoldThreads)
    FoldSlices(const Params p, const AttentionWork work, const AttentionScratch scratch) {
  LetDependentsLaunch();
  WaitForEarlierKernels();
  struct alignas(kEach * 4) Values {
    float v[kEach];
  };
  const int segment = blockIdx.y, threads_a_head = p.head_dim / kEach;
  const int thread = blockIdx.x * kFoldThreads + threadIdx.x;
  const int head = thread / threads_a_head, d = thread % threads_a_head * kEach;
  const int2 where = work.segments[segment];  // first item, position
  if (where.y < 0 || head >= p.num_heads) return;
  const int first = FirstSlice(where.y, p.window), last = where.y / kTile;
  constexpr int kAhead = 8;  // slices on their way while as many are folded
  float2 stats[kAhead], next_stats[kAhead];
  Values values[kAhead], next_values[kAhead];
  const auto load = [&](int from, float2(&to_stats)[kAhead], Values(&to_values)[kAhead]) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (from + j > last) break;
      const size_t at = static_cast<size_t>(where.x + from + j) * p.num_heads + head;
      to_stats[j] = scratch.stats[at];
      to_values[j] = *reinterpret_cast<const Values*>(scratch.values + at * p.head_dim + d);
    }
  };
  float max = -INFINITY, sum = 0.0f;
  Values acc = {};
  load(first, stats, values);
  for (int from = first; from <= last; from += kAhead) {
    load(from + kAhead, next_stats, next_values);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (from + j > last) break;
      float a, b;
      FoldRow(max, sum, stats[j].x, stats[j].y, a, b);
#pragma unroll
      for (int i = 0; i < kEach; ++i) acc.v[i] = FoldValue(acc.v[i], a, values[j].v[i], b);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      stats[j] = next_stats[j];
      values[j] = next_values[j];
    }
  }
  const float inverse = 1.0f / sum;
  bf16* to = p.out + (static_cast<size_t>(segment) * p.num_heads + head) * p.head_dim + d;
  if constexpr (kEach == 4)
    *reinterpret_cast<uint2*>(to) = make_uint2(Pack(acc.v[0] * inverse, acc.v[1] * inverse),
                                               Pack(acc.v[2] * inverse, acc.v[3] * inverse));
  else
    to[0] = __float2bfloat16(acc.v[0] * inverse);
}

template <int kDim, bool kPadded>
void Launch(const AttentionArgs& a, const Params& p, const AttentionWork& work,
            const AttentionScratch& scratch, int split_ctas, bool pdl, cudaStream_t stream) {
  constexpr int kStageBytes = Attend<kDim, 1, kPadded>::kStageBytes;
  static const bool raised = [] {
    const auto raise = [](const void* kernel, int bytes) {
      RC_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    };
    raise(reinterpret_cast<const void*>(AttentionSplit<kDim, kPadded>), kStageBytes);
    raise(reinterpret_cast<const void*>(AttentionWhole<kDim, 1, kPadded>), 2 * kStageBytes);
    raise(reinterpret_cast<const void*>(AttentionWhole<kDim, 4, kPadded>), 2 * kStageBytes);
    return true;
  }();
  (void)raised;
  const int group = a.num_heads / a.kv->num_kv_heads;
  if (split_ctas > 0) {
    LaunchKernel({.grid = dim3(split_ctas),
                  .block = dim3(32),
                  .shared_bytes = kStageBytes,
                  .pdl = pdl,
                  .stream = stream},
                 AttentionSplit<kDim, kPadded>, p, work, scratch);
    const int each = p.head_dim % 4 == 0 ? 4 : 1;
    const int threads = a.num_heads * p.head_dim / each;
    LaunchKernel({.grid = dim3((threads + kFoldThreads - 1) / kFoldThreads, a.batch->num_segments),
                  .block = dim3(kFoldThreads),
                  .pdl = pdl,
                  .stream = stream},
                 each == 4 ? FoldSlices<4> : FoldSlices<1>, p, work, scratch);
    return;
  }
  const int rows = a.batch->max_segment_rows * group;
  const int warps = rows <= 16 ? 1 : 4;
  const dim3 grid((rows + 16 * warps - 1) / (16 * warps), a.kv->num_kv_heads,
                  a.batch->num_segments);
  const LaunchShape shape{.grid = grid,
                          .block = dim3(warps * 32),
                          .shared_bytes = 2 * kStageBytes,
                          .pdl = pdl,
                          .stream = stream};
  if (warps == 1)
    LaunchKernel(shape, AttentionWhole<kDim, 1, kPadded>, p);
  else
    LaunchKernel(shape, AttentionWhole<kDim, 4, kPadded>, p);
}

}  // namespace

bool AttentionSupports(int head_dim) { return head_dim >= 1 && head_dim <= 256; }

void LaunchAttention(const AttentionArgs& a, const AttentionWork& work,
                     const AttentionScratch& scratch, int split_ctas, bool pdl,
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
  p.head_dim = a.kv->head_dim;
  p.window = a.window;
  RC_CHECK(static_cast<int64_t>(a.kv->num_pages) * p.page_size * p.num_kv_heads <= INT32_MAX,
           "KV rows of a layer");
  p.scale_log2 = a.scale * 1.44269504f;
  p.q = static_cast<const bf16*>(a.q);
  p.out = static_cast<bf16*>(a.out);
  switch (p.head_dim) {
    case 16:
      return Launch<16, false>(a, p, work, scratch, split_ctas, pdl, stream);
    case 32:
      return Launch<32, false>(a, p, work, scratch, split_ctas, pdl, stream);
    case 48:
      return Launch<48, false>(a, p, work, scratch, split_ctas, pdl, stream);
    case 64:
      return Launch<64, false>(a, p, work, scratch, split_ctas, pdl, stream);
    case 80:
      return Launch<80, false>(a, p, work, scratch, split_ctas, pdl, stream);
    case 96:
      return Launch<96, false>(a, p, work, scratch, split_ctas, pdl, stream);
    case 128:
      return Launch<128, false>(a, p, work, scratch, split_ctas, pdl, stream);
    case 256:
      return Launch<256, false>(a, p, work, scratch, split_ctas, pdl, stream);
  }
  RC_CHECK(AttentionSupports(p.head_dim), "head_dim ", p.head_dim);
  if (p.head_dim < 64) return Launch<64, true>(a, p, work, scratch, split_ctas, pdl, stream);
  if (p.head_dim < 128) return Launch<128, true>(a, p, work, scratch, split_ctas, pdl, stream);
  return Launch<256, true>(a, p, work, scratch, split_ctas, pdl, stream);
}

}  // namespace rollcast::cuda
