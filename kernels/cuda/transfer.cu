#include <algorithm>
#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/transfer.h"
#include "kernels/digest.h"
#include "kernels/float_convert.h"

namespace rollcast::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kDigestBlocks = 6;  // of one multiprocessor: as many as its registers hold

struct F32 {
  using Bits = uint32_t;
  static __device__ float ToFloat(Bits bits) { return __uint_as_float(bits); }
  static __device__ Bits From(float value) { return __float_as_uint(value); }
};
struct Bf16 {
  using Bits = uint16_t;
  static __device__ float ToFloat(Bits bits) { return Bf16ToFloat(bits); }
  static __device__ Bits From(float value) { return FloatToBf16(value); }
};
struct F16 {
  using Bits = uint16_t;
  static __device__ float ToFloat(Bits bits) { return F16ToFloat(bits); }
  static __device__ Bits From(float value) { return FloatToF16(value); }
};

__device__ bool Finite(float value) { return (__float_as_uint(value) & 0x7fffffff) < 0x7f800000; }

template <class From, class To>
__device__ typename To::Bits Convert(typename From::Bits bits, bool& overflow) {
  const float value = From::ToFloat(bits);
  const typename To::Bits stored = To::From(value);
  overflow |= Finite(value) && !Finite(To::ToFloat(stored));
  return stored;
}

constexpr int kPack = 8;  // elements a thread moves at once
template <class T>
struct alignas(16) Pack {
  T values[kPack];
};

// `packs`: how many packs of kPack elements both sides are aligned for; the elements after them go
// one by one, as bytes where they are not aligned either.
template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    CastKernel(const unsigned char* from, unsigned char* to, int64_t elements, int64_t packs,
               bool aligned, int* overflow) {
  using Source = typename From::Bits;
  using Target = typename To::Bits;
  const int64_t thread = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  const int64_t threads = gridDim.x * int64_t{kThreads};
  bool over = false;
  for (int64_t i = thread; i < packs; i += threads) {
    const Pack<Source> source = reinterpret_cast<const Pack<Source>*>(from)[i];
    Pack<Target> target;
#pragma unroll
    for (int k = 0; k < kPack; ++k) target.values[k] = Convert<From, To>(source.values[k], over);
    reinterpret_cast<Pack<Target>*>(to)[i] = target;
  }
  for (int64_t i = packs * kPack + thread; i < elements; i += threads) {
    if (aligned) {
      reinterpret_cast<Target*>(to)[i] =
          Convert<From, To>(reinterpret_cast<const Source*>(from)[i], over);
      continue;
    }
    Source source = 0;
    for (size_t k = 0; k < sizeof(Source); ++k)
      source |= static_cast<Source>(Source{from[i * sizeof(Source) + k]} << (8 * k));
    const Target target = Convert<From, To>(source, over);
    for (size_t k = 0; k < sizeof(Target); ++k)
      to[i * sizeof(Target) + k] = static_cast<unsigned char>(target >> (8 * k));
  }
  if (over) *overflow = 1;  // every writer writes the same
}

bool Aligned(const void* from, const void* to, size_t from_bytes, size_t to_bytes) {
  return reinterpret_cast<uintptr_t>(from) % from_bytes == 0 &&
         reinterpret_cast<uintptr_t>(to) % to_bytes == 0;
}

template <class From, class To>
void LaunchCastOf(const void* from, void* to, int64_t elements, int* overflow,
                  cudaStream_t stream) {
  const int64_t packs = Aligned(from, to, 16, 16) ? elements / kPack : 0;
  const bool aligned = Aligned(from, to, sizeof(typename From::Bits), sizeof(typename To::Bits));
  const int64_t work = packs > 0 ? packs : elements;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>((work + kThreads - 1) / kThreads, 1 << 16));
  LaunchKernel({.grid = dim3(blocks), .block = dim3(kThreads), .stream = stream},
               CastKernel<From, To>, static_cast<const unsigned char*>(from),
               static_cast<unsigned char*>(to), elements, packs, aligned, overflow);
}

// `dtype` as one of the structs above.
template <class Visitor>
void WithDType(DType dtype, Visitor visit) {
  if (dtype == DType::kF32) visit(F32());
  if (dtype == DType::kBF16) visit(Bf16());
  if (dtype == DType::kF16) visit(F16());
}

// A little-endian word out of pieces of type T, to which `at` is aligned.
template <class T>
__device__ uint64_t LoadWord(const unsigned char* at) {
  uint64_t word = 0;
#pragma unroll
  for (size_t k = 0; k < 8 / sizeof(T); ++k)
    word |= uint64_t{__ldcs(reinterpret_cast<const T*>(at) + k)} << (8 * sizeof(T) * k);
  return word;
}

template <class T>
__device__ uint64_t SumOfWords(const unsigned char* data, uint64_t first_word, uint32_t words) {
  uint64_t sum = 0;
  for (uint32_t i = threadIdx.x; i < words; i += kThreads)
    sum += DigestWord(LoadWord<T>(data + 8 * i), first_word + i);
  return sum;
}

__device__ uint64_t MixPair(ulonglong2 pair, uint64_t key) {
  return DigestMix(pair.x ^ key) + DigestMix(pair.y ^ (key + kDigestStep));
}

// The same for data at a multiple of 16: two words a load, four loads under way.
__device__ uint64_t SumOfPairs(const unsigned char* data, uint64_t first_word, uint32_t words) {
  constexpr int kLoads = 4;
  const auto* at = reinterpret_cast<const ulonglong2*>(data);
  const uint32_t pairs = words / 2;
  constexpr uint64_t kKeyStep = 2 * kThreads * kDigestStep;
  uint64_t key = DigestKey(first_word + 2 * threadIdx.x);
  uint64_t sum = 0;
  uint32_t i = threadIdx.x;
  for (; i + (kLoads - 1) * kThreads < pairs; i += kLoads * kThreads) {
    ulonglong2 loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) loaded[k] = __ldcs(at + i + k * kThreads);
#pragma unroll
    for (int k = 0; k < kLoads; ++k, key += kKeyStep) sum += MixPair(loaded[k], key);
  }
  for (; i < pairs; i += kThreads, key += kKeyStep) sum += MixPair(__ldcs(at + i), key);
  if (words % 2 != 0 && threadIdx.x == 0)
    sum += DigestWord(LoadWord<uint64_t>(data + 8 * (words - 1)), first_word + words - 1);
  return sum;
}

// Adds the sums of all threads of the block to *total.
__device__ void AddBlockSum(uint64_t sum, uint64_t* total) {
  __shared__ uint64_t warp_sums[kWarps];
  for (int distance = 16; distance > 0; distance /= 2)
    sum += __shfl_down_sync(0xffffffff, sum, distance);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kWarps; ++warp) sum += warp_sums[warp];
    atomicAdd(reinterpret_cast<unsigned long long*>(total), sum);
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads, kDigestBlocks)
    DigestKernel(const DigestJob* jobs, int count, uint64_t chunks, uint64_t* sums) {
  uint64_t sum = 0;
  int current = -1;
  for (uint64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    int low = 0, high = count;  // the last job with first_chunk <= chunk, so one that has bytes
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (jobs[middle].first_chunk <= chunk ? low : high) = middle;
    }
    if (low != current) {
      if (current >= 0) AddBlockSum(sum, sums + current);
      sum = 0;
      current = low;
    }
    const DigestJob job = jobs[current];
    const uint64_t begin = (chunk - job.first_chunk) * kDigestChunkBytes;
    const unsigned char* data = job.data + begin;
    const uint64_t first_word = job.first_word + begin / 8;
    const auto bytes = static_cast<uint32_t>(min(kDigestChunkBytes, job.bytes - begin));
    const uint32_t words = bytes / 8;
    const auto address = reinterpret_cast<uintptr_t>(data);
    if (address % 16 == 0)
      sum += SumOfPairs(data, first_word, words);
    else if (address % 8 == 0)
      sum += SumOfWords<uint64_t>(data, first_word, words);
    else if (address % 4 == 0)
      sum += SumOfWords<uint32_t>(data, first_word, words);
    else if (address % 2 == 0)
      sum += SumOfWords<uint16_t>(data, first_word, words);
    else
      sum += SumOfWords<uint8_t>(data, first_word, words);
    if (bytes % 8 != 0 && threadIdx.x == 0) {
      uint64_t word = 0;
      for (uint32_t k = 0; k < bytes % 8; ++k) word |= uint64_t{data[8 * words + k]} << (8 * k);
      sum += DigestWord(word, first_word + words);
    }
  }
  if (current >= 0) AddBlockSum(sum, sums + current);
}

}  // namespace

void LaunchCast(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t elements,
                int* overflow, cudaStream_t stream) {
  if (elements == 0) return;
  WithDType(from_dtype, [&](auto from_type) {
    WithDType(to_dtype, [&](auto to_type) {
      using From = decltype(from_type);
      using To = decltype(to_type);
      if constexpr (!std::is_same_v<From, To>)
        LaunchCastOf<From, To>(from, to, elements, overflow, stream);
    });
  });
}

void LaunchDigestSums(const DigestJob* jobs, int count, uint64_t chunks, uint64_t* sums,
                      int multiprocessors, cudaStream_t stream) {
  if (chunks == 0) return;
  const auto blocks =
      static_cast<unsigned>(std::min<uint64_t>(chunks, uint64_t{kDigestBlocks} * multiprocessors));
  LaunchKernel({.grid = dim3(blocks), .block = dim3(kThreads), .stream = stream}, DigestKernel,
               jobs, count, chunks, sums);
}

}  // namespace rollcast::cuda
