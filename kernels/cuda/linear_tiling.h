// How a product is cut up for the wgmma kernel: arithmetic of the host, without CUDA headers.
#pragma once

#include <cstdint>

namespace rollcast::cuda {

enum class Epilogue : int {
  kStore,  // out[row, n] = y + bias
  kAdd,    // out[row, n] += y + bias
  kGated,  // gated[row, n] = silu(y[n]) * y[n + N / 2], w holding gate rows, then up rows
};

/// Accumulation order of every product, whatever the kernel: k in groups of 16 in order; ceil(K /
/// 16) groups cut into 8 contiguous slices, slice i being groups [i G / 8, (i + 1) G / 8); each
/// slice accumulated from zero, the slices folded left to right. So a row's bits do not depend on
/// the batch, the tile or the kernel.
constexpr int kSlices = 8;

constexpr int SliceBegin(int slice, int K) { return slice * ((K + 15) / 16) / kSlices; }

constexpr int kChunk = 64;               // k of a stage: 128 bytes, the width of the swizzle
constexpr int kChunkRow = kChunk * 2;    // bytes
constexpr int kSharedBytes = 227 << 10;  // a CTA may have

struct LinearTiling {
  int token_tile;  // 8, 16, 32, 64 or 128 rows of x a CTA
  int warpgroups;  // 64 rows of w each
  int split;       // CTAs of a cluster that share the 8 slices: 1, 2, 4 or 8
  int shared_kib;  // of shared memory for the stages of a CTA, and what it folds
};

/// Rows of one tensor copy of weights; at most 256 are allowed.
constexpr int WeightBox(int warpgroups) { return warpgroups <= 4 ? 64 * warpgroups : 64; }

/// Floats between rows of the folds: even for 8-byte stores, not a multiple of the banks.
constexpr int FoldPitch(int token_tile) { return token_tile + 2; }

/// Whether a tile's slices may be spread over a cluster: registers and shared memory allow it.
constexpr bool CanSplit(int token_tile, int warpgroups) {
  return token_tile < 128 && warpgroups <= 2;
}

/// The launch of one product.
struct LinearPlan {
  int stages;
  int ring_bytes;   // of the stages
  int fold_bytes;   // of the slices that a cluster's CTAs leave each other
  int row_tiles;    // of w
  int token_tiles;  // more than one: split is 1
  int64_t ctas;
  int shared_bytes;  // of a CTA
};

/// Throws CheckFailure for a tiling that there is no kernel for.
LinearPlan PlanLinear(const LinearTiling& tiling, int rows, int N, int K);

LinearTiling ChooseTiling(int rows, int N, int K, Epilogue epilogue);

}  // namespace rollcast::cuda
