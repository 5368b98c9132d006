// How products are cut up for the wgmma kernel: what is chosen, and that it can be launched.
#include "kernels/cuda/linear_tiling.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <tuple>

#include "kernels/check.h"

namespace rollcast::cuda {
namespace {

// The tilings that ChooseTiling takes for more than 64 rows.
constexpr LinearTiling kTimed[] = {
    {64, 1, 1, 72}, {64, 2, 1, 200}, {64, 4, 1, 200}, {128, 2, 1, 200}, {128, 3, 1, 200}};

struct Timed {
  const char* name;
  int rows, N, K;
  Epilogue epilogue;
  double best;               // of twelve tilings, us
  std::array<double, 5> us;  // of kTimed; 0 = not timed
};

// One H200 (CUDA 13.0, driver 580.159.04, 30 November 2026); weights rotated past the L2, medians
// of six graph replays.
constexpr Timed kMeasured[] = {
    {"7B qkv", 128, 4608, 3584, Epilogue::kStore, 15.7, {20.8, 15.7, 26.3, 23.8, 36.4}},
    {"7B o", 128, 3584, 3584, Epilogue::kAdd, 16.9, {20, 16.9, 27.2, 26.6, 38.4}},
    {"7B gate_up", 128, 37888, 3584, Epilogue::kGated, 91.3, {103.6, 103.3, 111.7, 92.7, 91.7}},
    {"7B down", 128, 3584, 18944, Epilogue::kAdd, 66.3, {87.6, 66.3, 117.7, 105.7, 149.9}},
    {"8B gate_up", 128, 24576, 4096, Epilogue::kGated, 60.5, {73.7, 73.6, 78.7, 66.3, 60.5}},
    {"8B down", 128, 4096, 12288, Epilogue::kAdd, 47.1, {60.8, 47.1, 80.8, 74.4, 105.1}},
    {"7B head", 128, 152064, 3584, Epilogue::kStore, 326.3, {424.3, 406.2, 380.2, 330, 347.8}},
    {"7B qkv", 256, 4608, 3584, Epilogue::kStore, 26.2, {26.2, 34.1, 29.8, 27.7, 40.9}},
    {"7B o", 256, 3584, 3584, Epilogue::kAdd, 19.6, {23.5, 19.6, 30.2, 30.4, 42.2}},
    {"7B gate_up", 256, 37888, 3584, Epilogue::kGated, 128.8, {196.5, 171.9, 162.9, 140.4, 128.8}},
    {"7B down", 256, 3584, 18944, Epilogue::kAdd, 77.7, {106.3, 77.7, 120.6, 109.2, 154.8}},
    {"8B gate_up", 256, 24576, 4096, Epilogue::kGated, 91.8, {146.3, 123.2, 110.2, 91.8, 94.2}},
    {"8B down", 256, 4096, 12288, Epilogue::kAdd, 56, {71.3, 56, 82.9, 81.8, 109.6}},
    {"7B head", 256, 152064, 3584, Epilogue::kStore, 574.5, {844.5, 728.6, 617.3, 574.5, 588.5}},
    {"7B qkv", 2048, 4608, 3584, Epilogue::kStore, 147.8, {0, 0, 172.1, 165, 147.8}},
    {"7B o", 2048, 3584, 3584, Epilogue::kAdd, 145.1, {0, 0, 145.1, 150.5, 157.5}},
    {"7B gate_up", 2048, 37888, 3584, Epilogue::kGated, 1033.9, {0, 0, 1139.8, 1048.4, 1033.9}},
    {"7B down", 2048, 3584, 18944, Epilogue::kAdd, 490.8, {0, 0, 577.6, 490.8, 506.4}},
    {"8B gate_up", 2048, 24576, 4096, Epilogue::kGated, 689.7, {0, 0, 820, 723.9, 689.7}},
    {"8B down", 2048, 4096, 12288, Epilogue::kAdd, 344.8, {0, 0, 377.8, 344.8, 354.8}},
    {"7B qkv", 8192, 4608, 3584, Epilogue::kStore, 477.9, {0, 0, 547.1, 477.9, 483.5}},
    {"7B o", 8192, 3584, 3584, Epilogue::kAdd, 473.9, {0, 0, 473.9, 493.6, 484.4}},
    {"7B gate_up", 8192, 37888, 3584, Epilogue::kGated, 4367.1, {0, 0, 4847.1, 4487.2, 4367.1}},
    {"7B down", 8192, 3584, 18944, Epilogue::kAdd, 1905.5, {0, 0, 2014.3, 1905.5, 2002}},
    {"8B gate_up", 8192, 24576, 4096, Epilogue::kGated, 2893.6, {0, 0, 3321.3, 2978.3, 2893.6}},
    {"8B down", 8192, 4096, 12288, Epilogue::kAdd, 1469.3, {0, 0, 1522.8, 1469.3, 1578}},
};

TEST(LinearTiling, IsWithinThreePercentOfTheBestMeasuredUpTo4096Rows) {
  for (const Timed& m : kMeasured) {
    const LinearTiling t = ChooseTiling(m.rows, m.N, m.K, m.epilogue);
    double us = 0;
    for (size_t i = 0; i < m.us.size(); ++i)
      if (kTimed[i].token_tile == t.token_tile && kTimed[i].warpgroups == t.warpgroups &&
          kTimed[i].shared_kib == t.shared_kib)
        us = m.us[i];
    EXPECT_EQ(t.split, 1);
    EXPECT_GT(us, 0) << m.name << ", " << m.rows << " rows: " << t.token_tile << "x" << t.warpgroups
                     << " was not timed";
    if (m.rows > 4096) {  // one tiling throughout, whose gain shows in a whole step alone
      EXPECT_EQ(t.token_tile, 128) << m.name;
      EXPECT_EQ(t.warpgroups, 3) << m.name;
      continue;
    }
    EXPECT_LE(us, 1.03 * m.best) << m.name << ", " << m.rows << " rows: " << t.token_tile << "x"
                                 << t.warpgroups;
  }
}

// Between and beyond what was timed: whatever is chosen can be launched and covers the product.
TEST(LinearTiling, EveryChoiceCanBeLaunched) {
  std::set<std::tuple<int, int, int>> taken;
  for (const int rows : {1,   2,   7,   8,   9,   16,   17,   32,   33,   64,   65,
                         100, 129, 200, 256, 500, 1024, 2047, 4096, 8192, 20000})
    for (const int N :
         {1, 16, 64, 80, 200, 576, 896, 1152, 2048, 3584, 4608, 8192, 9728, 24576, 37888, 152064})
      for (const int K : {1, 8, 17, 64, 136, 512, 576, 1536, 3584, 8192, 18944})
        for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kGated}) {
          SCOPED_TRACE(StrCat(rows, " x ", N, " x ", K));
          const LinearTiling t = ChooseTiling(rows, N, K, epilogue);
          const LinearPlan plan = PlanLinear(t, rows, N, K);
          taken.insert({t.token_tile, t.warpgroups, t.split});
          EXPECT_GE(plan.row_tiles * 64 * t.warpgroups, N);
          EXPECT_LT((plan.row_tiles - 1) * 64 * t.warpgroups, N);
          EXPECT_GE(plan.token_tiles * t.token_tile, rows);
          EXPECT_LT((plan.token_tiles - 1) * t.token_tile, rows);
          EXPECT_EQ(plan.ctas, int64_t{plan.row_tiles} * plan.token_tiles * t.split);
          EXPECT_GE(plan.ctas, 1);
          EXPECT_GE(plan.stages, 1);
          EXPECT_LE(plan.shared_bytes, kSharedBytes);
          EXPECT_EQ(plan.ring_bytes, plan.stages * (64 * t.warpgroups + t.token_tile) * kChunkRow);
          // All eight slices of the rows that a CTA of a cluster finishes.
          const int finished = t.split > 1 ? 64 * t.warpgroups / t.split : 0;
          EXPECT_EQ(plan.fold_bytes, kSlices * finished * FoldPitch(t.token_tile) * 4);
          EXPECT_EQ(plan.shared_bytes, plan.ring_bytes + plan.fold_bytes + 16 * plan.stages);
        }
  for (const LinearTiling& t : kTimed)
    EXPECT_TRUE(taken.count({t.token_tile, t.warpgroups, 1}))
        << t.token_tile << "x" << t.warpgroups;
}

TEST(LinearTiling, NoPlanForWhatNoKernelDoes) {
  EXPECT_THROW(PlanLinear({128, 1, 4, 200}, 64, 64, 64), CheckFailure);
  EXPECT_THROW(PlanLinear({64, 1, 4, 200}, 65, 64, 64), CheckFailure);
  EXPECT_THROW(PlanLinear({128, 3, 1, 400}, 65, 64, 64000), CheckFailure);
}

TEST(LinearTiling, SlicesCoverKInOrder) {
  for (const int K : {1, 16, 100, 128, 130, 3584, 18944}) {
    EXPECT_EQ(SliceBegin(0, K), 0);
    for (int s = 0; s < kSlices; ++s) EXPECT_LE(SliceBegin(s, K), SliceBegin(s + 1, K));
    EXPECT_EQ(SliceBegin(kSlices, K), (K + 15) / 16);
  }
}

}  // namespace
}  // namespace rollcast::cuda
