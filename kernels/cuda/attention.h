// Attention over paged KV.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/backend.h"
#include "kernels/cuda/rows.h"

namespace rollcast::cuda {

/// KV tokens of one slice; slices begin at multiples of it. Each is computed from a fresh (max,
/// sum, accumulator) and they are folded left to right, so who computes a slice changes no bit.
constexpr int kAttentionSlice = 256;

/// Memory in which CTAs that share a sequence leave their slices.
struct AttentionScratch {
  float* partial = nullptr;    // [items, kv heads, fragment]
  int32_t* arrived = nullptr;  // [max segments, kv heads] zeros between launches
};

/// Floats of `partial` for one (item, kv head).
int AttentionFragment(int head_dim);

bool AttentionSupports(int head_dim);

/// bf16 q, KV and out. `split`: the slices of a sequence are spread over CTAs by the work list
/// (pure decode, and not more than 16 query heads a KV head); else one CTA walks a sequence.
void LaunchAttention(const AttentionArgs& args, const AttentionWork& work,
                     const AttentionScratch& scratch, bool split, int ctas, bool pdl,
                     cudaStream_t stream);

}  // namespace rollcast::cuda
