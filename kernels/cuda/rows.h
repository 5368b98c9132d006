// Ops on single rows: resolve and embed, norm, rope with the KV write, advance, page copies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/backend.h"

namespace rollcast::cuda {

/// Where the decode attention kernels find their work, made once a step by LaunchEmbed. The items
/// of a segment are neighbours, in order.
struct AttentionWork {
  int4* items = nullptr;     // [max items] segment, slice of KV, slot, position of the last row
  int2* segments = nullptr;  // [max segments] first item, position of the last row; -1 = inactive
  int32_t* count = nullptr;  // [1]
  int slice_tokens = 0;
  /// An attention kernel has been launched since Embed. It lets dependents launch only after its
  /// own wait, so whatever comes after it starts when Embed has finished, and may read the list and
  /// what else Embed wrote before it waits for the kernel ahead of it; through the L2, since lines
  /// of the L1 may be older.
  bool is_old = false;
};

void LaunchEmbed(const EmbedArgs& args, int page_size, const AttentionWork& work, bool pdl,
                 cudaStream_t stream);

/// out[i] = bfloat16(rmsnorm(hidden[rows[i]]) * norm); rows null: row i. Rows whose index is
/// negative are left alone.
void LaunchNorm(const float* hidden, const int32_t* rows, int count, int hidden_size,
                const __nv_bfloat16* norm, float eps, __nv_bfloat16* out, bool pdl,
                cudaStream_t stream);

/// hidden_out[i] = hidden[rows[i]].
void LaunchGatherHidden(const float* hidden, const int32_t* rows, int count, int hidden_size,
                        float* out, bool pdl, cudaStream_t stream);

/// q/k norm and rope on qkv [rows, qkv_rows] float32 (bias included); q goes to args.q, k and v to
/// their pages. `is_old`: as AttentionWork has it.
void LaunchRope(const AttentionInputArgs& args, const float* qkv, bool is_old, bool pdl,
                cudaStream_t stream);

void LaunchAdvance(const AdvanceArgs& args, bool pdl, cudaStream_t stream);

/// Copies whole pages of every layer; `pairs` are (from, to) in device memory.
void LaunchCopyPages(const KvPages& kv, const int2* pairs, int count, cudaStream_t stream);

}  // namespace rollcast::cuda
