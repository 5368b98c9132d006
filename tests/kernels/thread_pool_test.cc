#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "kernels/check.h"

namespace rollcast::cpu {
namespace {

TEST(ThreadPool, EveryPartRunsOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int count : {0, 1, 2, 3, 17, 1000, ThreadPool::kMaxParts}) {
      std::vector<int> runs(count, 0);
      pool.ParallelFor(count, [&](int part, int) { ++runs[part]; });
      EXPECT_EQ(runs, std::vector<int>(count, 1)) << threads << " threads";
    }
  }
}

TEST(ThreadPool, ManyShortRoundsSeeEachOther) {
  ThreadPool pool(3);
  std::vector<int64_t> values(64, 0);
  for (int round = 0; round < 20000; ++round) {
    pool.ParallelFor(8, [&](int part, int) {
      for (int i = 0; i < 8; ++i) values[part * 8 + i] += 1;
    });
    // The next round reads what this one wrote, on whatever thread.
    pool.ParallelFor(8, [&](int part, int) { values[part] += values[63 - part] - round - 1; });
  }
  EXPECT_EQ(values, std::vector<int64_t>(64, 20000));
}

TEST(ThreadPool, ThreadsThatRunTogetherHaveTheirOwnNumber) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> clashes{0};
  for (int round = 0; round < 200; ++round)
    pool.ParallelFor(100, [&](int, int thread) {
      if (inside[thread].fetch_add(1) != 0) ++clashes;
      inside[thread].fetch_sub(1);
    });
  EXPECT_EQ(clashes, 0);
}

TEST(ThreadPool, CallersMayChange) {
  ThreadPool pool(2);
  std::atomic<int> sum{0};
  for (int i = 0; i < 20; ++i)
    std::thread([&] { pool.ParallelFor(10, [&](int part, int) { sum += part; }); }).join();
  EXPECT_EQ(sum, 900);
}

TEST(ThreadPool, TooManyPartsAreRefused) {
  ThreadPool pool(2);
  EXPECT_THROW(pool.ParallelFor(ThreadPool::kMaxParts + 1, [](int, int) {}), CheckFailure);
}

}  // namespace
}  // namespace rollcast::cpu
