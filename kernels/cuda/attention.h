// Attention over paged KV.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/backend.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/rows.h"

namespace rollcast::cuda {

/// Memory for slices that are computed apart; an item is an entry of the work list.
struct AttentionScratch {
  float* values = nullptr;  // [items, query heads, head_dim], at a multiple of 128 bytes
  float2* stats = nullptr;  // [items, query heads] maximum, sum
};

/// bf16 q, KV and out, head_dim up to 256. `split_ctas` > 0: the slices of all sequences are spread
/// over so many CTAs by the work list, which has memory for as many items (pure decode, and not
/// more than 16 query heads a KV head); 0: one CTA walks a sequence.
void LaunchAttention(const AttentionArgs& args, const AttentionWork& work,
                     const AttentionScratch& scratch, int split_ctas, bool pdl,
                     cudaStream_t stream);

}  // namespace rollcast::cuda
