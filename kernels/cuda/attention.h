// Attention over paged KV.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/backend.h"
#include "kernels/cuda/rows.h"

namespace rollcast::cuda {

/// KV tokens of one slice; slices begin at multiples of it. Each is computed from a fresh (max,
/// sum, accumulator) and they are folded left to right, so who computes a slice changes no bit.
constexpr int kAttentionSlice = 64;

/// Memory for slices that are computed apart; an item is an entry of the work list.
struct AttentionScratch {
  float* values = nullptr;  // [items, query heads, head_dim]
  float2* stats = nullptr;  // [items, query heads] maximum, sum
};

/// Up to 256.
bool AttentionSupports(int head_dim);

/// bf16 q, KV and out. `split_ctas` > 0: the slices of all sequences are spread over so many CTAs
/// by the work list, which has memory for as many items (pure decode, and not more than 16 query
/// heads a KV head); 0: one CTA walks a sequence.
void LaunchAttention(const AttentionArgs& args, const AttentionWork& work,
                     const AttentionScratch& scratch, int split_ctas, bool pdl,
                     cudaStream_t stream);

}  // namespace rollcast::cuda
