#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/rows.h"

namespace rollcast::cuda {

namespace {

using bf16 = __nv_bfloat16;

__device__ int SegmentOfRow(const RaggedBatch& b, int row) {
  if (b.max_segment_rows == 1) return row;
  int low = 0, high = b.num_segments;  // the last segment that begins at or before the row
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (b.segment_begin[middle] <= row ? low : high) = middle;
  }
  return low;
}

struct Resolved {
  int token = 0, position = -1, slot = -1;
};

__device__ Resolved Resolve(const RaggedBatch& b, const SlotState& slots, int row, int segment) {
  Resolved r;
  if (segment >= b.num_segments || row >= b.segment_begin[segment + 1]) return r;
  const int slot = b.segment_slot[segment];
  if (slot < 0 || slots.stopped[slot]) return r;
  r.slot = slot;
  r.token = b.row_token[row];
  r.position = b.row_position[row];
  if (r.token < 0) {
    r.token = slots.last_token[slot];
    r.position = slots.length[slot] - 1;
  }
  return r;
}

// One CTA a row; the CTA after the last row makes the attention work list.
__global__ void Embed(const RaggedBatch b, const SlotState slots, const bf16* table,
                      int hidden_size, float scale, int page_size, AttentionWork work,
                      float* hidden) {
  LetDependentsLaunch();
  WaitForEarlierKernels();
  const int row = blockIdx.x;
  if (row == b.num_rows) {
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    // The order of the list does not matter: every slice is folded by its place in the sequence.
    for (int s = threadIdx.x; s < b.num_segments; s += blockDim.x) {
      const Resolved r = Resolve(b, slots, b.segment_begin[s + 1] - 1, s);
      if (r.slot < 0) {
        work.segments[s] = make_int2(0, -1);
        continue;
      }
      const int slices = r.position / work.slice_tokens + 1;
      const int at = atomicAdd(&total, slices);
      work.segments[s] = make_int2(at, r.position);
      for (int i = 0; i < slices; ++i) work.items[at + i] = make_int4(s, i, r.slot, r.position);
    }
    __syncthreads();
    if (threadIdx.x == 0) *work.count = total;
    return;
  }
  const int segment = SegmentOfRow(b, row);
  const Resolved r = Resolve(b, slots, row, segment);
  if (threadIdx.x == 0) {
    b.position[row] = r.position;
    b.slot[row] = r.slot;
    const int page = r.slot < 0 || b.segment_new_page == nullptr ? -1 : b.segment_new_page[segment];
    if (page >= 0)
      slots.page_table[static_cast<size_t>(r.slot) * slots.max_pages + r.position / page_size] =
          page;
  }
  if (r.slot < 0) return;
  float* out = hidden + static_cast<size_t>(row) * hidden_size;
  const bf16* in = table + static_cast<size_t>(r.token) * hidden_size;
  for (int i = threadIdx.x; i < hidden_size; i += blockDim.x)
    out[i] = __bfloat162float(in[i]) * scale;
}

// Sum over the CTA in a fixed order; `scratch` has a float a warp.
__device__ float SumCta(float v, float* scratch) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = scratch[0];
  for (int w = 1; w < blockDim.x / 32; ++w) sum += scratch[w];
  return sum;
}

constexpr int kNormThreads = 256;
constexpr int kNormQuads = 8;  // of four elements a thread, when a row is held in registers

// kWhole: hidden_size is a multiple of 4 and the CTA holds the row.
template <bool kWhole>
__global__ void __launch_bounds__(kNormThreads)
    Norm(const float* hidden, const int32_t* rows, int hidden_size, const bf16* norm, float eps,
         bf16* out) {
  __shared__ float scratch[kNormThreads / 32];
  LetDependentsLaunch();
  uint2 weights[kNormQuads];
  if (kWhole) {
#pragma unroll
    for (int j = 0; j < kNormQuads; ++j) {
      const int i = 4 * (j * kNormThreads + threadIdx.x);
      if (i < hidden_size) weights[j] = *reinterpret_cast<const uint2*>(norm + i);
    }
  }
  WaitForEarlierKernels();
  const int row = rows == nullptr ? static_cast<int>(blockIdx.x) : rows[blockIdx.x];
  if (row < 0) return;
  const float* in = hidden + static_cast<size_t>(row) * hidden_size;
  bf16* to = out + static_cast<size_t>(blockIdx.x) * hidden_size;
  float squares = 0;
  if constexpr (!kWhole) {
    for (int i = threadIdx.x; i < hidden_size; i += kNormThreads)
      squares = __fmaf_rn(in[i], in[i], squares);
    const float scale = rsqrtf(SumCta(squares, scratch) / hidden_size + eps);
    for (int i = threadIdx.x; i < hidden_size; i += kNormThreads)
      to[i] = __float2bfloat16(in[i] * scale * __bfloat162float(norm[i]));
  } else {
    float4 x[kNormQuads];
#pragma unroll
    for (int j = 0; j < kNormQuads; ++j) {
      const int i = 4 * (j * kNormThreads + threadIdx.x);
      x[j] = i < hidden_size ? *reinterpret_cast<const float4*>(in + i) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < kNormQuads; ++j) {
      squares = __fmaf_rn(x[j].x, x[j].x, squares);
      squares = __fmaf_rn(x[j].y, x[j].y, squares);
      squares = __fmaf_rn(x[j].z, x[j].z, squares);
      squares = __fmaf_rn(x[j].w, x[j].w, squares);
    }
    const float scale = rsqrtf(SumCta(squares, scratch) / hidden_size + eps);
#pragma unroll
    for (int j = 0; j < kNormQuads; ++j) {
      const int i = 4 * (j * kNormThreads + threadIdx.x);
      if (i >= hidden_size) break;
      const __nv_bfloat162 w0 = *reinterpret_cast<const __nv_bfloat162*>(&weights[j].x);
      const __nv_bfloat162 w1 = *reinterpret_cast<const __nv_bfloat162*>(&weights[j].y);
      const __nv_bfloat162 y0 = __floats2bfloat162_rn(x[j].x * scale * __low2float(w0),
                                                      x[j].y * scale * __high2float(w0));
      const __nv_bfloat162 y1 = __floats2bfloat162_rn(x[j].z * scale * __low2float(w1),
                                                      x[j].w * scale * __high2float(w1));
      *reinterpret_cast<uint2*>(to + i) = make_uint2(*reinterpret_cast<const uint32_t*>(&y0),
                                                     *reinterpret_cast<const uint32_t*>(&y1));
    }
  }
}

__global__ void GatherHidden(const float* hidden, const int32_t* rows, int hidden_size,
                             float* out) {
  LetDependentsLaunch();
  WaitForEarlierKernels();
  const int row = rows[blockIdx.x];
  if (row < 0) return;
  for (int i = threadIdx.x; i < hidden_size; i += blockDim.x)
    out[static_cast<size_t>(blockIdx.x) * hidden_size + i] =
        hidden[static_cast<size_t>(row) * hidden_size + i];
}

constexpr int kRopeWarps = 4;
constexpr int kRopeDims = 256;  // the most

// One warp a (row, head): q heads, then k heads, then v heads. head_dim at most 256.
__global__ void Rope(const AttentionInputArgs a, const RaggedBatch b, const SlotState slots,
                     const KvPages kv, const float* qkv, bool is_old) {
  LetDependentsLaunch();
  if (!is_old) WaitForEarlierKernels();
  const int heads = a.num_heads + 2 * a.num_kv_heads, lane = threadIdx.x % 32;
  const int item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int row = item / heads, head = item % heads, d = a.head_dim;
  const int position = row < b.num_rows ? __ldcg(b.position + row) : -1;
  const bool is_q = head < a.num_heads, is_v = head >= a.num_heads + a.num_kv_heads;
  const int half = is_v ? 0 : a.rope.rotary_dim / 2;
  // All that does not come from the product is asked for before the wait.
  bf16* out = nullptr;
  float cos[kRopeDims / 64], sin[kRopeDims / 64];
  bf16 weight[kRopeDims / 32];
  const TensorView& norm = is_q ? a.q_norm : a.k_norm;
  const bool normed = !is_v && norm.data != nullptr;
  if (position >= 0) {
    if (is_q) {
      out = static_cast<bf16*>(a.q) + (static_cast<size_t>(row) * a.num_heads + head) * d;
    } else {
      const int slot = __ldcg(b.slot + row);
      const int page = __ldcg(slots.page_table + static_cast<size_t>(slot) * slots.max_pages +
                              position / kv.page_size);
      const int kv_head = is_v ? head - a.num_heads - a.num_kv_heads : head - a.num_heads;
      const size_t at =
          (((static_cast<size_t>(a.layer) * kv.num_pages + page) * kv.num_kv_heads + kv_head) *
               kv.page_size +
           position % kv.page_size) *
          d;
      out = static_cast<bf16*>(is_v ? kv.v : kv.k) + at;
    }
    const size_t angles = static_cast<size_t>(position) * half;
#pragma unroll
    for (int j = 0; j < kRopeDims / 64; ++j)
      if (const int i = lane + 32 * j; i < half) {
        cos[j] = a.rope.cos[angles + i];
        sin[j] = a.rope.sin[angles + i];
      }
    if (normed)
#pragma unroll
      for (int j = 0; j < kRopeDims / 32; ++j)
        if (const int i = lane + 32 * j; i < d) weight[j] = static_cast<const bf16*>(norm.data)[i];
  }
  if (is_old) WaitForEarlierKernels();
  if (position < 0) return;
  __shared__ float held[kRopeWarps][kRopeDims];
  float* const in = held[threadIdx.x / 32];
  const float* from = qkv + (static_cast<size_t>(row) * heads + head) * d;
  float x[kRopeDims / 32];
#pragma unroll
  for (int j = 0; j < kRopeDims / 32; ++j)
    if (const int i = lane + 32 * j; i < d) x[j] = from[i];
  if (normed) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kRopeDims / 32; ++j)
      if (lane + 32 * j < d) squares = __fmaf_rn(x[j], x[j], squares);
#pragma unroll
    for (int s = 16; s > 0; s /= 2) squares += __shfl_xor_sync(~0u, squares, s);
    const float scale = rsqrtf(squares / d + a.rms_eps);
#pragma unroll
    for (int j = 0; j < kRopeDims / 32; ++j)
      if (lane + 32 * j < d) x[j] = x[j] * scale * __bfloat162float(weight[j]);
  }
#pragma unroll
  for (int j = 0; j < kRopeDims / 32; ++j)
    if (const int i = lane + 32 * j; i < d) in[i] = x[j];
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kRopeDims / 64; ++j)
    if (const int i = lane + 32 * j; i < half) {
      const float left = in[i], right = in[i + half];
      out[i] = __float2bfloat16(__fmaf_rn(left, cos[j], -(right * sin[j])));
      out[i + half] = __float2bfloat16(__fmaf_rn(right, cos[j], left * sin[j]));
    }
  for (int i = 2 * half + lane; i < d; i += 32) out[i] = __float2bfloat16(in[i]);
}

__global__ void Advance(const RaggedBatch b, const SlotState slots, SampleResult* results,
                        SampleResult* mailbox, int stride, const int32_t* index) {
  LetDependentsLaunch();
  WaitForEarlierKernels();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= b.num_samples) return;
  SampleResult r = results[i];
  r.stopped = 0;
  if (r.valid && b.sample_forced[i] < 0) {
    const int slot = b.sample_slot[i];
    const SlotSampling& p = slots.sampling[slot];
    const int length =
        b.position[b.sample_row[i]] + 2;  // the row's token and those before it, and the new one
    slots.last_token[slot] = r.token;
    slots.length[slot] = length;
    if (length <= slots.max_context)
      slots.history[static_cast<size_t>(slot) * slots.max_context + length - 1] = r.token;
    r.stopped = length >= p.max_length;
    for (int s = 0; s < p.num_stop_ids; ++s)
      r.stopped |= length > p.min_length && r.token == p.stop_ids[s];
    slots.stopped[slot] = r.stopped;
  }
  results[i] = r;
  const size_t half = index == nullptr ? 0 : static_cast<size_t>(*index) * stride;
  mailbox[half + i] = r;
}

// A page is `chunks` elements of type T.
template <class T>
__global__ void CopyPages(const KvPages kv, const int2* pairs, size_t chunks) {
  const int2 pair = pairs[blockIdx.x];
  const size_t layer = blockIdx.y;
  for (void* half : {kv.k, kv.v}) {
    const T* from = static_cast<const T*>(half) + (layer * kv.num_pages + pair.x) * chunks;
    T* to = static_cast<T*>(half) + (layer * kv.num_pages + pair.y) * chunks;
    for (size_t i = threadIdx.x; i < chunks; i += blockDim.x) to[i] = from[i];
  }
}

}  // namespace

void LaunchEmbed(const EmbedArgs& a, int page_size, const AttentionWork& work, bool pdl,
                 cudaStream_t stream) {
  LaunchKernel(
      {.grid = dim3(a.batch->num_rows + 1), .block = dim3(256), .pdl = pdl, .stream = stream},
      Embed, *a.batch, *a.slots, static_cast<const bf16*>(a.table.data),
      static_cast<int>(a.table.shape[1]), a.scale, page_size, work, a.hidden);
}

void LaunchNorm(const float* hidden, const int32_t* rows, int count, int hidden_size,
                const bf16* norm, float eps, bf16* out, bool pdl, cudaStream_t stream) {
  const bool whole = hidden_size % 4 == 0 && hidden_size <= 4 * kNormQuads * kNormThreads &&
                     reinterpret_cast<uintptr_t>(norm) % 8 == 0;
  LaunchKernel({.grid = dim3(count), .block = dim3(kNormThreads), .pdl = pdl, .stream = stream},
               whole ? Norm<true> : Norm<false>, hidden, rows, hidden_size, norm, eps, out);
}

void LaunchGatherHidden(const float* hidden, const int32_t* rows, int count, int hidden_size,
                        float* out, bool pdl, cudaStream_t stream) {
  LaunchKernel({.grid = dim3(count), .block = dim3(256), .pdl = pdl, .stream = stream},
               GatherHidden, hidden, rows, hidden_size, out);
}

void LaunchRope(const AttentionInputArgs& a, const float* qkv, bool is_old, bool pdl,
                cudaStream_t stream) {
  const int items = a.batch->num_rows * (a.num_heads + 2 * a.num_kv_heads);
  LaunchKernel({.grid = dim3((items + kRopeWarps - 1) / kRopeWarps),
                .block = dim3(kRopeWarps * 32),
                .pdl = pdl,
                .stream = stream},
               Rope, a, *a.batch, *a.slots, *a.kv, qkv, is_old);
}

void LaunchAdvance(const AdvanceArgs& a, bool pdl, cudaStream_t stream) {
  constexpr int kThreads = 128;
  LaunchKernel({.grid = dim3((a.batch->num_samples + kThreads - 1) / kThreads),
                .block = dim3(kThreads),
                .pdl = pdl,
                .stream = stream},
               Advance, *a.batch, *a.slots, a.result, a.mailbox, a.mailbox_stride, a.mailbox_index);
}

void LaunchCopyPages(const KvPages& kv, const int2* pairs, int count, cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(kv.page_size) * kv.num_kv_heads * kv.head_dim * 2;
  const LaunchShape shape{.grid = dim3(count, kv.num_layers), .block = dim3(256), .stream = stream};
  if (bytes % sizeof(uint4) == 0)
    LaunchKernel(shape, CopyPages<uint4>, kv, pairs, bytes / sizeof(uint4));
  else
    LaunchKernel(shape, CopyPages<bf16>, kv, pairs, bytes / sizeof(bf16));
}

}  // namespace rollcast::cuda
