// The product for shapes and alignments that the fast kernels do not take: one warp eight rows of w
// and up to 16 tokens, plain loads, the same order of accumulation.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx.cuh"

namespace rollcast::cuda {

namespace {

using bf16 = __nv_bfloat16;

__device__ uint32_t Load2(const bf16* row, bool there, int k, int K) {
  const bf16 zero = __float2bfloat16(0.0f);
  __nv_bfloat162 v;
  v.x = there && k < K ? row[k] : zero;
  v.y = there && k + 1 < K ? row[k + 1] : zero;
  return *reinterpret_cast<const uint32_t*>(&v);
}

// Rows of w [n0, n0 + 8) against tokens [t0, t0 + 16): d as m16n8 of (token, row).
__device__ void Product(const LinearParams& p, int n0, int t0, float (&sum)[4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const bf16* x0 = p.x + static_cast<size_t>(t0 + g) * p.K;
  const bf16* x1 = x0 + static_cast<size_t>(8) * p.K;
  const bf16* w = p.w + static_cast<size_t>(n0 + g) * p.K;
  const bool has0 = t0 + g < p.rows, has1 = t0 + g + 8 < p.rows, has_w = n0 + g < p.N;
  for (int s = 0; s < kSlices; ++s) {
    float acc[4] = {0, 0, 0, 0};
    for (int group = SliceBegin(s, p.K); group < SliceBegin(s + 1, p.K); ++group) {
      const int k = group * 16 + 2 * c;
      const uint32_t a[4] = {Load2(x0, has0, k, p.K), Load2(x1, has1, k, p.K),
                             Load2(x0, has0, k + 8, p.K), Load2(x1, has1, k + 8, p.K)};
      const uint32_t b[2] = {Load2(w, has_w, k, p.K), Load2(w, has_w, k + 8, p.K)};
      Mma(acc, a, b);
    }
    for (int i = 0; i < 4; ++i) sum[i] = s == 0 ? acc[i] : sum[i] + acc[i];
  }
}

template <Epilogue kEpilogue>
__global__ void LinearGeneric(const LinearParams p) {
  LetDependentsLaunch();
  WaitForEarlierKernels();
  const int outputs = kEpilogue == Epilogue::kGated ? p.N / 2 : p.N;
  const int n0 = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 8, t0 = blockIdx.y * 16;
  if (n0 >= outputs) return;
  const int lane = threadIdx.x % 32;
  float y[4], up[4];
  LinearParams cut = p;
  cut.N = outputs;
  Product(cut, n0, t0, y);
  if constexpr (kEpilogue == Epilogue::kGated) {
    cut.w += static_cast<size_t>(outputs) * p.K;
    Product(cut, n0, t0, up);
  }
  for (int i = 0; i < 4; ++i) {
    const int t = t0 + lane / 4 + 8 * (i / 2), n = n0 + 2 * (lane % 4) + i % 2;
    if (t >= p.rows || n >= outputs || (p.slot != nullptr && p.slot[t] < 0)) continue;
    float v = y[i];
    if (p.bias != nullptr) v += __bfloat162float(p.bias[n]);
    if constexpr (kEpilogue == Epilogue::kGated) {
      float u = up[i];
      if (p.bias != nullptr) u += __bfloat162float(p.bias[outputs + n]);
      p.gated[static_cast<size_t>(t) * outputs + n] = __float2bfloat16(v / (1.0f + __expf(-v)) * u);
    } else {
      float* out = p.out + static_cast<size_t>(t) * p.N + n;
      *out = kEpilogue == Epilogue::kAdd ? *out + v : v;
    }
  }
}

}  // namespace

void LaunchLinearGeneric(const LinearParams& p, Epilogue epilogue, bool pdl, cudaStream_t stream) {
  constexpr int kWarps = 4;
  const int outputs = epilogue == Epilogue::kGated ? p.N / 2 : p.N;
  const LaunchShape shape{
      .grid = dim3((outputs + 8 * kWarps - 1) / (8 * kWarps), (p.rows + 15) / 16),
      .block = dim3(kWarps * 32),
      .pdl = pdl,
      .stream = stream};
  switch (epilogue) {
    case Epilogue::kStore:
      return LaunchKernel(shape, LinearGeneric<Epilogue::kStore>, p);
    case Epilogue::kAdd:
      return LaunchKernel(shape, LinearGeneric<Epilogue::kAdd>, p);
    case Epilogue::kGated:
      return LaunchKernel(shape, LinearGeneric<Epilogue::kGated>, p);
  }
}

}  // namespace rollcast::cuda
