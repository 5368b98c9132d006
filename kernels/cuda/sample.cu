#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/sample.h"

namespace rollcast::cuda {

namespace {

constexpr int kThreads = 256;  // of the slice kernel
constexpr int kPerThread = kVocabSlice / kThreads;
constexpr int kSlowThreads = 1024;

// Philox4x32-10 (Salmon et al. 2011) at counter (id / 4, position, 0, 0): the noise words of four
// neighbouring ids.
__device__ void Noise4(uint64_t seed, uint32_t position, uint32_t quad, uint32_t (&out)[4]) {
  uint32_t c0 = quad, c1 = position, c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t h0 = __umulhi(0xd2511f53u, c0), l0 = 0xd2511f53u * c0;
    const uint32_t h1 = __umulhi(0xcd9e8d57u, c2), l1 = 0xcd9e8d57u * c2;
    c0 = h1 ^ c1 ^ k0;
    c1 = l1;
    c2 = h0 ^ c3 ^ k1;
    c3 = l0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

__device__ float Gumbel(uint32_t word) {
  const double u = (word + 0.5) * 0x1p-32;
  return static_cast<float>(-log(-log(u)));
}

// An upper bound of Gumbel(word): with q = ~word, 1 - u >= q 2^-32 and -log(-log u) <= -log(1 - u).
__device__ float GumbelBound(uint32_t word) { return (__clz(~word) + 1) * 0.693147181f; }

struct Best {
  float score = -INFINITY;
  int id = 0x7fffffff;
  __device__ void Take(float s, int i) {
    if (s > score || (s == score && i < id)) {
      score = s;
      id = i;
    }
  }
  // Of the whole CTA, in every thread; `shared` has an element a warp.
  __device__ void Reduce(Best* shared) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      const float s = __shfl_xor_sync(~0u, score, d);
      const int i = __shfl_xor_sync(~0u, id, d);
      Take(s, i);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = *this;
    __syncthreads();
    for (int w = 0; w < blockDim.x / 32; ++w) Take(shared[w].score, shared[w].id);
  }
};

template <class T>
__device__ T SumWarp(T v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  return v;
}

// In every thread; a tree of fixed shape.
template <class T>
__device__ T SumCta(T v, T* shared) {
  v = SumWarp(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  T sum = shared[0];
  for (int w = 1; w < blockDim.x / 32; ++w) sum += shared[w];
  return sum;
}

struct Sample {
  bool valid = false, greedy = false, slow = false;
  int forced = -1, slot = 0, position = 0;  // position of the token to be drawn
  float scale = 1.0f;
};

__device__ bool HasFilter(const SlotSampling& p, int vocab) {
  return (p.top_k > 0 && p.top_k < vocab) || p.top_p < 1.0f || p.min_p > 0.0f;
}

__device__ Sample Read(const RaggedBatch& b, const SlotState& slots, int i, int vocab) {
  Sample s;
  const int row = b.sample_row[i];
  if (row < 0 || b.position[row] < 0) return s;
  s.forced = b.sample_forced[i];
  s.slot = b.sample_slot[i];
  if (s.forced < 0 && slots.stopped[s.slot]) return s;
  s.valid = true;
  s.position = b.position[row] + 1;
  const SlotSampling& p = slots.sampling[s.slot];
  s.greedy = !(p.temperature > 0);
  s.scale = s.greedy ? 1.0f : 1.0f / p.temperature;
  s.slow = p.HasPenalty() || (p.num_stop_ids > 0 && s.position < p.min_length) ||
           (!s.greedy && HasFilter(p, vocab));
  return s;
}

__global__ void __launch_bounds__(kThreads)
    Slices(const RaggedBatch b, const SlotState slots, const float* logits, int vocab, int first,
           SliceStats* out) {
  __shared__ Best best_of_warp[kThreads / 32];
  __shared__ float sum_of_warp[kThreads / 32];
  LetDependentsLaunch();
  WaitForEarlierKernels();
  const int slice = blockIdx.x, i = blockIdx.y;
  const Sample s = Read(b, slots, first + i, vocab);
  if (!s.valid) return;
  const float* row = logits + static_cast<size_t>(i) * vocab;
  const int base = slice * kVocabSlice;
  float x[kPerThread];
  Best top;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int id = base + (j / 4 * kThreads + threadIdx.x) * 4 + j % 4;
    x[j] = id < vocab ? __ldcg(row + id) : -INFINITY;
    top.Take(x[j], id);
  }
  top.Reduce(best_of_warp);
  float sum = 0, tempered = 0;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    sum += __expf(x[j] - top.score);
    tempered += __expf((x[j] - top.score) * s.scale);
  }
  sum = SumCta(sum, sum_of_warp);
  tempered = SumCta(tempered, sum_of_warp);
  Best drawn;
  if (s.forced < 0 && !s.greedy && !s.slow) {
    const uint64_t seed = slots.sampling[s.slot].seed;
    uint32_t word[4];
    Noise4(seed, s.position, top.id / 4, word);
    drawn.Take(top.score * s.scale + Gumbel(word[top.id % 4]), top.id);
#pragma unroll
    for (int j = 0; j < kPerThread; j += 4) {
      const int id = base + (j / 4 * kThreads + threadIdx.x) * 4;
      Noise4(seed, s.position, id / 4, word);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float score = x[j + k] * s.scale;
        if (score + GumbelBound(word[k]) >= drawn.score && id + k < vocab)
          drawn.Take(score + Gumbel(word[k]), id + k);
      }
    }
    drawn.Reduce(best_of_warp);
  }
  if (threadIdx.x == 0)
    out[static_cast<size_t>(i) * gridDim.x + slice] = {top.score, sum,         tempered,
                                                       top.id,    drawn.score, drawn.id};
}

struct Folded {
  float max;
  double log_sum, log_tempered;
  Best top, drawn;
};

// By one warp, in every lane.
__device__ Folded Fold(const SliceStats* slices, int count, float scale) {
  const int lane = threadIdx.x % 32;
  Folded f;
  for (int s = lane; s < count; s += 32) {
    f.top.Take(slices[s].max, slices[s].argmax);
    f.drawn.Take(slices[s].best, slices[s].best_id);
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const float a = __shfl_xor_sync(~0u, f.top.score, d),
                c = __shfl_xor_sync(~0u, f.drawn.score, d);
    const int i = __shfl_xor_sync(~0u, f.top.id, d), j = __shfl_xor_sync(~0u, f.drawn.id, d);
    f.top.Take(a, i);
    f.drawn.Take(c, j);
  }
  f.max = f.top.score;
  double sum = 0, tempered = 0;
  for (int s = lane; s < count; s += 32) {
    const double below = static_cast<double>(slices[s].max) - f.max;
    sum += slices[s].sum * exp(below);
    tempered += slices[s].tempered * exp(below * scale);
  }
  f.log_sum = log(SumWarp(sum));
  f.log_tempered = log(SumWarp(tempered));
  return f;
}

__device__ void Report(SampleResult& r, const Sample& s, const Folded& f, int token, float logit) {
  r.token = token;
  r.valid = 1;
  r.stopped = 0;
  const double below = static_cast<double>(logit) - f.max;
  r.logprob_raw = static_cast<float>(below - f.log_sum);
  r.logprob = s.greedy ? r.logprob_raw : static_cast<float>(below * s.scale - f.log_tempered);
  r.logprob_filtered = r.logprob;
}

// One warp a sample: everything but the slow ones.
__global__ void Finish(const RaggedBatch b, const SlotState slots, const float* logits, int vocab,
                       int first, int count, const SliceStats* slices, int num_slices,
                       SampleResult* results) {
  LetDependentsLaunch();
  WaitForEarlierKernels();
  const int i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (i >= count) return;
  const Sample s = Read(b, slots, first + i, vocab);
  SampleResult r = {};
  if (s.valid) {
    const Folded f = Fold(slices + static_cast<size_t>(i) * num_slices, num_slices, s.scale);
    const int token = s.forced >= 0 ? s.forced : s.greedy ? f.top.id : f.drawn.id;
    if (s.slow) return;
    // Without a comparable logit there is nothing to draw; its log-probability is then NaN.
    const int there = token < vocab ? token : 0;
    Report(r, s, f, there, logits[static_cast<size_t>(i) * vocab + there]);
  }
  if (threadIdx.x % 32 == 0) results[first + i] = r;
}

// Order-preserving bits: a > b as floats if and only if Key(a) > Key(b).
__device__ uint32_t Key(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

constexpr float kMassOne = 0x1p40f;
__device__ unsigned long long Mass(float x, float max) {
  return static_cast<unsigned long long>(__expf(x - max) * kMassOne);
}

/// The ids that stay: those whose key is above `key`, and of those with exactly it the ones up to
/// `last_id`.
struct Cut {
  uint32_t key = 0;
  int last_id = 0x7fffffff;
  __device__ bool Keeps(uint32_t k, int id) const { return k > key || (k == key && id <= last_id); }
};

/// Finds where the running total over ids in order of (key, descending, then id, ascending) first
/// reaches `goal`, by eight bits of the key at a time. kMass: totals of probability in fixed point;
/// else of ids.
template <bool kMass>
__device__ Cut FindCut(const float* x, int vocab, float scale, float max, const Cut& within,
                       unsigned long long goal, unsigned long long* histogram) {
  __shared__ uint32_t chosen;
  __shared__ unsigned long long before;
  uint32_t prefix = 0;
  unsigned long long passed = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) histogram[i] = 0;
    __syncthreads();
    for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
      const float v = x[id] * scale;
      const uint32_t k = Key(v);
      if (!within.Keeps(k, id) || (shift < 24 && (k >> (shift + 8)) != prefix)) continue;
      atomicAdd(&histogram[k >> shift & 255], kMass ? Mass(v, max) : 1ull);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned long long total = passed;
      int bin = 255;
      for (; bin > 0 && total + histogram[bin] < goal; --bin) total += histogram[bin];
      chosen = bin;
      before = total;
    }
    __syncthreads();
    prefix = prefix << 8 | chosen;
    passed = before;
    __syncthreads();
  }
  // Equal keys have equal mass: so many of them, the lowest ids first.
  const unsigned long long left = goal > passed ? goal - passed : 1;
  const uint32_t bits = prefix & 0x80000000u ? prefix & 0x7fffffffu : ~prefix;
  const unsigned long long each = kMass ? Mass(__uint_as_float(bits), max) : 1ull;
  unsigned long long wanted = each == 0 ? 0x7fffffffull : (left + each - 1) / each;
  uint32_t id_prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) histogram[i] = 0;
    __syncthreads();
    for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
      const uint32_t k = Key(x[id] * scale);
      if (k != prefix || !within.Keeps(k, id) ||
          (shift < 24 && (uint32_t(id) >> (shift + 8)) != id_prefix))
        continue;
      atomicAdd(&histogram[id >> shift & 255], 1ull);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned long long total = 0;
      int bin = 0;
      for (; bin < 255 && total + histogram[bin] < wanted; ++bin) total += histogram[bin];
      chosen = bin;
      before = total;
    }
    __syncthreads();
    id_prefix = id_prefix << 8 | chosen;
    wanted = wanted > before ? wanted - before : 1;
    __syncthreads();
  }
  return {prefix, static_cast<int>(id_prefix & 0x7fffffffu)};
}

// Penalties and masks into `adjusted`; `counts` is zeros before and after.
__device__ void Adjust(const SlotState& slots, const Sample& s, const float* logits, int vocab,
                       float* adjusted, int32_t* counts) {
  const SlotSampling& p = slots.sampling[s.slot];
  for (int id = threadIdx.x; id < vocab; id += blockDim.x) adjusted[id] = logits[id];
  __syncthreads();
  if (p.HasPenalty()) {
    const int32_t* history = slots.history + static_cast<size_t>(s.slot) * slots.max_context;
    for (int j = threadIdx.x; j < s.position; j += blockDim.x)
      if (j < p.prompt_length)
        atomicOr(&counts[history[j]], 1);
      else
        atomicAdd(&counts[history[j]], 2);
    __syncthreads();
    for (int j = threadIdx.x; j < s.position; j += blockDim.x) {
      const int count = atomicExch(&counts[history[j]], 0);  // whoever gets it applies it
      if (count == 0) continue;
      float& x = adjusted[history[j]];
      if (p.repetition_penalty != 1.0f)
        x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
      if (count > 1) x -= p.frequency_penalty * static_cast<float>(count >> 1) + p.presence_penalty;
    }
    __syncthreads();
  }
  if (s.position < p.min_length && p.num_stop_ids < vocab && threadIdx.x < p.num_stop_ids) {
    const int id = p.stop_ids[threadIdx.x];
    if (id >= 0 && id < vocab) adjusted[id] = -INFINITY;
  }
  __syncthreads();
}

// One CTA a sample with penalties, masks or filters.
__global__ void __launch_bounds__(kSlowThreads)
    Slow(const RaggedBatch b, const SlotState slots, const float* logits, int vocab, int first,
         int count, const SliceStats* slices, int num_slices, float* all_adjusted,
         int32_t* all_counts, SampleResult* results) {
  __shared__ unsigned long long histogram[256];
  __shared__ Best best_of_warp[kSlowThreads / 32];
  __shared__ double sum_of_warp[kSlowThreads / 32];
  __shared__ unsigned long long mass_of_warp[kSlowThreads / 32];
  LetDependentsLaunch();
  WaitForEarlierKernels();
  float* adjusted = all_adjusted + static_cast<size_t>(blockIdx.x) * vocab;
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    const Sample s = Read(b, slots, first + i, vocab);
    if (!s.valid || !s.slow) continue;
    const SlotSampling& p = slots.sampling[s.slot];
    const float* row = logits + static_cast<size_t>(i) * vocab;
    Adjust(slots, s, row, vocab, adjusted, all_counts + static_cast<size_t>(blockIdx.x) * vocab);
    Best top;
    for (int id = threadIdx.x; id < vocab; id += blockDim.x) top.Take(adjusted[id] * s.scale, id);
    top.Reduce(best_of_warp);
    const float max = top.score;
    Cut cut;
    if (!s.greedy && p.top_k > 0 && p.top_k < vocab)
      cut = FindCut<false>(adjusted, vocab, s.scale, max, cut, p.top_k, histogram);
    if (!s.greedy && p.top_p < 1.0f) {
      unsigned long long mass = 0;
      for (int id = threadIdx.x; id < vocab; id += blockDim.x) {
        const float x = adjusted[id] * s.scale;
        if (cut.Keeps(Key(x), id)) mass += Mass(x, max);
      }
      const unsigned long long total = SumCta(mass, mass_of_warp);
      const double goal = ceil(static_cast<double>(p.top_p) * static_cast<double>(total));
      cut = FindCut<true>(adjusted, vocab, s.scale, max, cut,
                          static_cast<unsigned long long>(goal > 1 ? goal : 1), histogram);
    }
    Best drawn;
    double sum = 0;
    __shared__ bool forced_stays;
    if (threadIdx.x == 0) forced_stays = false;
    __syncthreads();
    if (s.greedy) {
      drawn = top;
    } else {
      for (int quad = threadIdx.x; quad * 4 < vocab; quad += blockDim.x) {
        uint32_t word[4];
        Noise4(p.seed, s.position, quad, word);
        for (int k = 0; k < 4; ++k) {
          const int id = quad * 4 + k;
          if (id >= vocab) break;
          const float x = adjusted[id] * s.scale;
          if (x == -INFINITY || !cut.Keeps(Key(x), id)) continue;
          const double probability = exp(static_cast<double>(x) - max);
          if (p.min_p > 0 && id != top.id && probability < p.min_p) continue;
          sum += probability;
          if (id == s.forced) forced_stays = true;
          if (x + GumbelBound(word[k]) >= drawn.score) drawn.Take(x + Gumbel(word[k]), id);
        }
      }
      sum = SumCta(sum, sum_of_warp);
      drawn.Reduce(best_of_warp);
    }
    if (threadIdx.x < 32) {
      const Folded f = Fold(slices + static_cast<size_t>(i) * num_slices, num_slices, s.scale);
      const int token = s.forced >= 0 ? s.forced : drawn.id < vocab ? drawn.id : 0;
      SampleResult r = {};
      Report(r, s, f, token, row[token]);
      if (!s.greedy)
        r.logprob_filtered =
            s.forced >= 0 && !forced_stays
                ? -INFINITY
                : static_cast<float>(static_cast<double>(adjusted[token] * s.scale) - max -
                                     log(sum));
      if (threadIdx.x == 0) results[first + i] = r;
    }
    __syncthreads();
  }
}

}  // namespace

void LaunchSample(const HeadSampleArgs& a, const float* logits, int vocab, int first, int count,
                  const SampleScratch& scratch, bool pdl, cudaStream_t stream) {
  const int num_slices = (vocab + kVocabSlice - 1) / kVocabSlice;
  LaunchKernel(
      {.grid = dim3(num_slices, count), .block = dim3(kThreads), .pdl = pdl, .stream = stream},
      Slices, *a.batch, *a.slots, logits, vocab, first, scratch.slices);
  constexpr int kWarps = 4;
  LaunchKernel({.grid = dim3((count + kWarps - 1) / kWarps),
                .block = dim3(kWarps * 32),
                .pdl = pdl,
                .stream = stream},
               Finish, *a.batch, *a.slots, logits, vocab, first, count, scratch.slices, num_slices,
               a.result);
  LaunchKernel({.grid = dim3(min(count, kSlowCtas)),
                .block = dim3(kSlowThreads),
                .pdl = pdl,
                .stream = stream},
               Slow, *a.batch, *a.slots, logits, vocab, first, count, scratch.slices, num_slices,
               scratch.adjusted, scratch.counts, a.result);
}

}  // namespace rollcast::cuda
