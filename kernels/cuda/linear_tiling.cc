#include "kernels/cuda/linear_tiling.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"

namespace rollcast::cuda {

namespace {

constexpr int kMultiprocessors = 132;

/// A tiling for more than 64 rows and what one of its tiles takes on an H200, in us. The numbers
/// are fitted, not physical: they order the tilings as tests/kernels/linear_tiling_test.cc has them
/// measured.
struct WideTiling {
  LinearTiling tiling;
  int share;         // CTAs that a multiprocessor holds
  double chunk_us;   // of 64 k
  double end_us[3];  // of kStore, kAdd, kGated: the fold, the epilogue, the next tile's start
};

constexpr WideTiling kWide[] = {
    {{64, 1, 1, 72}, 3, 0.560, {3.6, 3.6, 3.6}},
    {{64, 2, 1, 200}, 1, 0.228, {6.4, 6.4, 6.4}},
    {{64, 4, 1, 200}, 1, 0.405, {7.9, 7.9, 7.9}},
    {{128, 2, 1, 200}, 1, 0.360, {9.0, 10.6, 10.0}},
    {{128, 3, 1, 200}, 1, 0.522, {15.0, 17.4, 15.0}},
};

LinearTiling ChooseWide(int rows, int N, int K, Epilogue epilogue) {
  // In a step, where clock and memory are shared with what runs before and after, a long prefill is
  // 2 % faster with this one throughout than with the best of each product alone (measured in
  // turn).
  if (rows > 4096) return {128, 3, 1, 200};
  const LinearTiling* best = nullptr;
  double least = 0;
  for (const WideTiling& wide : kWide) {
    const LinearPlan plan = PlanLinear(wide.tiling, rows, N, K);
    const double full = static_cast<double>(plan.ctas) / (kMultiprocessors * wide.share);
    // CTAs that share a multiprocessor even out the last wave; a single one is slow by itself.
    const double waves = wide.share == 1 ? std::ceil(full) : std::max(full, 0.7);
    const double us = waves * (static_cast<double>(K) / kChunk * wide.chunk_us +
                               wide.end_us[static_cast<int>(epilogue)]);
    if (best == nullptr || us < least) {
      best = &wide.tiling;
      least = us;
    }
  }
  return *best;
}

}  // namespace

LinearPlan PlanLinear(const LinearTiling& tiling, int rows, int N, int K) {
  const int w_rows = tiling.warpgroups * 64, split = tiling.split;
  RC_CHECK(split == 1 || CanSplit(tiling.token_tile, tiling.warpgroups), "no kernel for this");
  LinearPlan plan;
  plan.row_tiles = (N + w_rows - 1) / w_rows;
  plan.token_tiles = (rows + tiling.token_tile - 1) / tiling.token_tile;
  RC_CHECK(split == 1 || plan.token_tiles == 1, "a cluster has one tile of tokens");
  plan.ctas = int64_t{plan.row_tiles} * plan.token_tiles * split;
  const int stage_bytes = (w_rows + tiling.token_tile) * kChunkRow, barrier_bytes = 16;
  const int chunks = kSlices / split * ((SliceBegin(kSlices, K) / kSlices + 4) / 4);
  plan.fold_bytes =
      split > 1 ? kSlices * (w_rows / split) * FoldPitch(tiling.token_tile) * 4 : 0;  // float32
  // A stage is given back when the next one has been asked for: one alone would never be.
  const int fit =
      std::max(2, (tiling.shared_kib * 1024 - plan.fold_bytes) / (stage_bytes + barrier_bytes));
  plan.stages = std::min(fit, chunks);
  plan.ring_bytes = plan.stages * stage_bytes;
  plan.shared_bytes = plan.ring_bytes + plan.fold_bytes + plan.stages * barrier_bytes;
  RC_CHECK_LE(plan.shared_bytes, kSharedBytes);
  return plan;
}

// Fitted to measurements on an H200 (tests/bench/README.md). Weights in flight decide. Many tiles:
// about 72 KiB a CTA, so that three share a multiprocessor; about one a multiprocessor: all its
// memory; fewer: the slices are spread over a cluster. A CTA of 64 tokens reads as many tokens as
// 64 rows of weights, so it takes more rows where that keeps its waves full.
LinearTiling ChooseTiling(int rows, int N, int K, Epilogue epilogue) {
  if (rows > 64) return ChooseWide(rows, N, K, epilogue);
  const int tiles = (N + 63) / 64;
  LinearTiling t{rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64, 1, 1, 72};
  if (tiles > kMultiprocessors) {
    if (t.token_tile < 64) return t;
    int least = 1 << 30;
    for (int w = 1; w <= 5; ++w) {
      const int ctas = (tiles + w - 1) / w;
      const int cost = (ctas + kMultiprocessors - 1) / kMultiprocessors * (w + 1);
      if (cost < least) {
        least = cost;
        t.warpgroups = w;
      }
    }
    t.shared_kib = 200;
    return t;
  }
  if (2 * tiles > kMultiprocessors || K < 512) {
    t.shared_kib = 200;
    return t;
  }
  // Pairs keep all multiprocessors busy where larger clusters leave some without work, and fold
  // half as much; with 64 tokens, what a multiprocessor reads from the L2 is the limit.
  if (tiles >= 64 ? t.token_tile >= 32
                  : t.token_tile == 64 && 4 * tiles > kMultiprocessors && K < 8192) {
    t.split = 2;
    t.shared_kib = 200;
    return t;
  }
  if (4 * tiles > kMultiprocessors && K >= 8192) {
    t.warpgroups = 2;
    t.split = 4;
    t.shared_kib = tiles < 64 ? 224 : 110;
    return t;
  }
  constexpr int kPairs = 224;  // CTAs of 110 KiB in clusters that find room together
  t.split = 4 * tiles <= kMultiprocessors && epilogue != Epilogue::kGated ? 8 : 4;
  t.shared_kib = t.split * tiles <= kPairs ? 110 : 72;
  return t;
}

}  // namespace rollcast::cuda
