// The loops of the CPU backend that are compiled once for each instruction set.
//
// Every set gives the same bits. All of them run the source of isa_impl.h, which is written in
// terms of 16 virtual lanes with fused multiply-add; the lanes_*.h headers supply those lanes.
// Sums over k: element k is added to lane k mod 16 in ascending order from zero, short vectors are
// padded with zeros, and the lanes are folded as v[i] + v[i + 8], + 4, + 2, + 1.
//
// This header is included by files built with -mavx512f: nothing in it may be an inline function,
// since the linker could keep that file's copy for everyone.
#pragma once

#include <cstdint>

namespace rollcast::cpu {

constexpr int kLanes = 16;
constexpr int kRowBlock = 8;         // rows that are packed together
constexpr int kAttentionSlice = 64;  // tokens of KV, at absolute positions
constexpr int kVocabSlice = 4096;    // ids whose statistics are folded together

enum class WeightType : int32_t { kF32, kF16, kBF16 };

/// out[r * out_stride + j] = sum over k of x[r][k] * weight[j][k].
struct ProductArgs {
  /// Packed rows, in blocks of kRowBlock (the last may have fewer, R): element k of row r of a
  /// block is at [(k / 16) * R * 16 + r * 16 + k % 16]; k is padded with zeros to a multiple of 16.
  const float* x;
  int32_t num_rows;
  int32_t k;
  const void* weight;  // [num_columns, k], any alignment
  WeightType type;
  int32_t num_columns;
  float* out;
  int64_t out_stride;
};

/// Up to kRowBlock queries of one kv head against one slice of KV.
struct AttentionSliceArgs {
  const float* q;  // packed as one block of ProductArgs::x
  int32_t num_queries;
  int32_t head_dim;
  float scale;
  const float* const* k;  // [kAttentionSlice] the vector of each token; only visible ones are read
  const float* const* v;
  const float* const* next_k;  // of the slice that is likely next, to be fetched early
  int32_t next_begin, next_end;
  int32_t begin[kRowBlock];  // the query sees tokens [begin, end) of the slice
  int32_t end[kRowBlock];
  float* max;  // [num_queries] of the scores
  float* sum;  // [num_queries] of exp(score - max)
  float* acc;  // [num_queries, acc_stride] sum of exp(score - max) * v
  int32_t acc_stride;
};

/// One slice of a distribution over ids; x = logit * scale.
struct SliceStats {
  float max;       // of x
  float sum;       // of exp(x - max)
  int32_t argmax;  // lowest index with the highest logit; -1 if there is none above -FLT_MAX
};

struct DrawArgs {
  const float* logits;  // of ids first_id .. first_id + count
  int32_t first_id;     // a multiple of 64
  int32_t count;
  float scale;
  uint64_t seed;
  uint32_t position;
  float best;       // in and out: highest score so far
  int32_t best_id;  // in and out
};

struct IsaKernels {
  const char* name;
  void (*product)(const ProductArgs& args);
  /// out[(k / 16) * out_stride + k % 16] = x[k] / rms(x) * weight[k]; zeros up to a multiple of 16.
  void (*rms_norm)(const float* x, int32_t n, const void* weight, WeightType type, float eps,
                   float* out, int64_t out_stride);
  /// out[i] = float(weight[i]) * scale.
  void (*convert)(const void* weight, WeightType type, int32_t n, float scale, float* out);
  /// out[i] = gate / (1 + exp(-gate)) * up.
  void (*silu_mul)(const float* gate, const float* up, int32_t n, float* out);
  void (*attention_slice)(const AttentionSliceArgs& args);
  /// Folds the second partial result of one query into the first.
  void (*attention_fold)(float* max, float* sum, float* acc, float max2, float sum2,
                         const float* acc2, int32_t head_dim);
  SliceStats (*slice_stats)(const float* logits, int32_t n, float scale);
  void (*draw)(DrawArgs& args);
  /// DigestSum (kernels/digest.h) of `count` whole words at any alignment; `key` is the first
  /// one's.
  uint64_t (*digest)(const void* words, int64_t count, uint64_t key);
};

extern const IsaKernels kPlainKernels;
extern const IsaKernels kAvx2Kernels;
extern const IsaKernels kAvx512Kernels;

}  // namespace rollcast::cpu
