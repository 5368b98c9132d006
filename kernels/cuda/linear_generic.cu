// The product wherever wgmma cannot serve: devices before Hopper, odd shapes and alignments. A CTA
// has eight rows of w and up to 16 tokens, a warp one of the slices.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx.cuh"

namespace rollcast::cuda {

namespace {

using bf16 = __nv_bfloat16;

constexpr int kRowTile = 8, kTokenTile = 16;  // of the tensor core's product
constexpr int kThreads = kSlices * 32;

// kPairs: K is even and rows begin at multiples of 4 bytes.
template <bool kPairs>
__device__ __forceinline__ uint32_t Load2(const bf16* row, bool there, int k, int K) {
  if constexpr (kPairs) {
    return there && k < K ? *reinterpret_cast<const uint32_t*>(row + k) : 0u;
  } else {
    const bf16 zero = __float2bfloat16(0.0f);
    __nv_bfloat162 v;
    v.x = there && k < K ? row[k] : zero;
    v.y = there && k + 1 < K ? row[k + 1] : zero;
    return *reinterpret_cast<const uint32_t*>(&v);
  }
}

// One slice of rows [n0, n0 + 8) of w, of which there are N, against tokens [t0, t0 + 16): m16n8 of
// (token, row).
template <bool kPairs>
__device__ void Slice(const LinearParams& p, const bf16* w, int N, int n0, int t0, int slice,
                      float (&acc)[4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const bf16* x0 = p.x + static_cast<size_t>(t0 + g) * p.K;
  const bf16* x1 = x0 + static_cast<size_t>(8) * p.K;
  const bf16* row = w + static_cast<size_t>(n0 + g) * p.K;
  const bool has0 = t0 + g < p.rows, has1 = t0 + g + 8 < p.rows, has_w = n0 + g < N;
  acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
  const int end = SliceBegin(slice + 1, p.K);
  constexpr int kAhead = 8;  // groups on their way at once
  for (int group = SliceBegin(slice, p.K); group < end; group += kAhead) {
    uint32_t a[kAhead][4], b[kAhead][2];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int k = (group + j) * 16 + 2 * c;
      const bool more = group + j < end;
      b[j][0] = Load2<kPairs>(row, has_w && more, k, p.K);
      b[j][1] = Load2<kPairs>(row, has_w && more, k + 8, p.K);
      a[j][0] = Load2<kPairs>(x0, has0 && more, k, p.K);
      a[j][1] = Load2<kPairs>(x1, has1 && more, k, p.K);
      a[j][2] = Load2<kPairs>(x0, has0 && more, k + 8, p.K);
      a[j][3] = Load2<kPairs>(x1, has1 && more, k + 8, p.K);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      if (group + j < end) Mma(acc, a[j], b[j]);
  }
}

template <Epilogue kEpilogue, bool kPairs>
__global__ void __launch_bounds__(kThreads) LinearGeneric(const LinearParams p) {
  constexpr bool kIsGated = kEpilogue == Epilogue::kGated;
  constexpr int kOutputs = kRowTile * kTokenTile;
  __shared__ float slices[kIsGated ? 2 : 1][kSlices][kOutputs];
  LetDependentsLaunch();
  WaitForEarlierKernels();
  const int outputs = kIsGated ? p.N / 2 : p.N;
  const int n0 = blockIdx.x * kRowTile, t0 = blockIdx.y * kTokenTile;
  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
#pragma unroll
  for (int part = 0; part < (kIsGated ? 2 : 1); ++part) {
    float acc[4];
    Slice<kPairs>(p, p.w + static_cast<size_t>(part) * outputs * p.K, outputs, n0, t0, slice, acc);
    for (int i = 0; i < 4; ++i) slices[part][slice][32 * i + lane] = acc[i];
  }
  __syncthreads();
  if (threadIdx.x >= kOutputs) return;
  const int i = threadIdx.x / 32;
  const int t = t0 + lane / 4 + 8 * (i / 2), n = n0 + 2 * (lane % 4) + i % 2;
  if (t >= p.rows || n >= outputs || (p.slot != nullptr && p.slot[t] < 0)) return;
  const auto folded = [&](int part) {
    float v = slices[part][0][threadIdx.x];
    for (int s = 1; s < kSlices; ++s) v += slices[part][s][threadIdx.x];
    return p.bias != nullptr ? v + __bfloat162float(p.bias[part * outputs + n]) : v;
  };
  const float v = folded(0);
  if constexpr (kIsGated) {
    p.gated[static_cast<size_t>(t) * outputs + n] =
        __float2bfloat16(v / (1.0f + __expf(-v)) * folded(1));
  } else {
    float* out = p.out + static_cast<size_t>(t) * p.N + n;
    *out = kEpilogue == Epilogue::kAdd ? *out + v : v;
  }
}

template <Epilogue kEpilogue>
void Launch(const LinearParams& p, bool pdl, cudaStream_t stream) {
  const int outputs = kEpilogue == Epilogue::kGated ? p.N / 2 : p.N;
  const LaunchShape shape{
      .grid = dim3((outputs + kRowTile - 1) / kRowTile, (p.rows + kTokenTile - 1) / kTokenTile),
      .block = dim3(kThreads),
      .pdl = pdl,
      .stream = stream};
  const auto address = reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.w);
  if (p.K % 2 == 0 && address % 4 == 0)
    LaunchKernel(shape, LinearGeneric<kEpilogue, true>, p);
  else
    LaunchKernel(shape, LinearGeneric<kEpilogue, false>, p);
}

}  // namespace

void LaunchLinearGeneric(const LinearParams& p, Epilogue epilogue, bool pdl, cudaStream_t stream) {
  switch (epilogue) {
    case Epilogue::kStore:
      return Launch<Epilogue::kStore>(p, pdl, stream);
    case Epilogue::kAdd:
      return Launch<Epilogue::kAdd>(p, pdl, stream);
    case Epilogue::kGated:
      return Launch<Epilogue::kGated>(p, pdl, stream);
  }
}

}  // namespace rollcast::cuda
