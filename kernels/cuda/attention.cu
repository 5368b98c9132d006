// The attention kernels: one for prefill and many sequences, two for decode of few.
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/launch.cuh"

namespace rollcast::cuda {

namespace {

template <int kDim, int kWarps, bool kPadded>
__global__ void __launch_bounds__(kWarps * 32) AttentionWhole(const Params p) {
  extern __shared__ __align__(128) unsigned char shared[];
  WaitForEarlierKernels();
  LetDependentsLaunch();  // in this order: see AttentionWork::is_old
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
  if (!work.is_old) WaitForEarlierKernels();
  const int heads = p.num_kv_heads;
  int i = blockIdx.x;
  int4 what = __ldcg(work.items + i / heads);  // there are at least as many items as CTAs in memory
  const int items = __ldcg(work.count) * heads;
  const auto find = [&](const A& attend, const int4& item) {  // nothing before the window
    return attend.Find(item.z, item.y, item.y < FirstSlice(item.w, p.window) ? -1 : item.w);
  };
  const auto item_at = [&](int at) {
    return at < items ? __ldcg(work.items + at / heads) : make_int4(0, 0, 0, -1);
  };
  const int step = gridDim.x;
  int4 then = item_at(i + step);
  A attend(p, shared);
  const auto load = [&](const typename A::Rows& rows) {
    attend.Load(p.k, rows, i % heads, 0);
    CommitCopies();
    attend.Load(p.v, rows, i % heads, A::kTileBytes);
    CommitCopies();
  };
  // Where a sequence goes on from the token it drew, this step writes no KV but that token's: the
  // slices before its own can be asked for while the kernels ahead still run. A row of a prompt may
  // see pages that another row of the same step fills.
  bool early = false;
  if (i < items) {
    const typename A::Rows rows = find(attend, what);
    early = !kPadded && work.is_old && what.y < what.w / kTile &&
            __ldcg(p.batch.row_token + what.x) < 0;
    if (early) load(rows);
    if (work.is_old) WaitForEarlierKernels();
    LetDependentsLaunch();  // not before the wait: see AttentionWork::is_old
    if (!early) load(rows);
  } else {
    if (work.is_old) WaitForEarlierKernels();
    return;
  }
  attend.Begin(what.z, what.x, 1, what.w, i % heads, 0);
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
  struct alignas(kEach * 4) Values {
    float v[kEach];
  };
  const int segment = blockIdx.y, threads_a_head = p.head_dim / kEach;
  const int thread = blockIdx.x * kFoldThreads + threadIdx.x;
  const int head = thread / threads_a_head, d = thread % threads_a_head * kEach;
  // First item, position. Read before the wait: AttentionSplit let this kernel start after its own.
  const int2 where = __ldcg(work.segments + segment);
  WaitForEarlierKernels();
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
  constexpr int kLine = 128 / sizeof(float);
  if (kEach == 4 && p.head_dim % kLine == 0) {  // then a line is one head's, read by this warp
    __syncwarp();
    if (d % kLine == 0)
      for (int i = first; i <= last; ++i)
        DiscardLine(scratch.values +
                    (static_cast<size_t>(where.x + i) * p.num_heads + head) * p.head_dim + d);
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
  static_assert(kStageBytes == AttentionStageBytes(kDim));
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
  const auto launch = [&]<int kDim, bool kPadded>() {
    Launch<kDim, kPadded>(a, p, work, scratch, split_ctas, pdl, stream);
  };
  const bool padded = p.head_dim != CompiledHeadDim(p.head_dim);
  switch (CompiledHeadDim(p.head_dim)) {
    case 16:
      return launch.operator()<16, false>();
    case 32:
      return launch.operator()<32, false>();
    case 48:
      return launch.operator()<48, false>();
    case 64:
      return padded ? launch.operator()<64, true>() : launch.operator()<64, false>();
    case 80:
      return launch.operator()<80, false>();
    case 96:
      return launch.operator()<96, false>();
    case 128:
      return padded ? launch.operator()<128, true>() : launch.operator()<128, false>();
    case 256:
      return padded ? launch.operator()<256, true>() : launch.operator()<256, false>();
  }
  RC_CHECK(false, "head_dim ", p.head_dim);
}

}  // namespace rollcast::cuda
