#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

namespace rollcast {
namespace {

class PrefixCacheTest : public ::testing::Test {
 protected:
  std::vector<PageRef> Pages(int n) {
    std::vector<PageRef> pages;
    for (int i = 0; i < n; ++i) pages.push_back(pool_.Allocate());
    return pages;
  }
  static std::vector<int32_t> Numbers(const std::vector<PageRef>& pages) {
    std::vector<int32_t> numbers;
    for (const PageRef& p : pages) numbers.push_back(p.page());
    return numbers;
  }

  PagePool pool_{16};
  PrefixCache cache_{2};
};

TEST_F(PrefixCacheTest, MatchesWholePagesOfTheLongestPrefix) {
  std::vector<PageRef> pages = Pages(3);
  const auto numbers = Numbers(pages);
  cache_.Insert(0, std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7}, pages);
  EXPECT_EQ(Numbers(cache_.Match(0, std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8})), numbers);
  EXPECT_EQ(Numbers(cache_.Match(0, std::vector<int32_t>{1, 2, 3, 4, 5})),
            (std::vector<int32_t>{numbers[0], numbers[1]}));
  EXPECT_EQ(Numbers(cache_.Match(0, std::vector<int32_t>{1, 2, 3, 9})),
            (std::vector<int32_t>{numbers[0]}));
  EXPECT_TRUE(cache_.Match(0, std::vector<int32_t>{1}).empty());
  EXPECT_TRUE(cache_.Match(0, std::vector<int32_t>{2, 1}).empty());
}

TEST_F(PrefixCacheTest, AnotherVersionNeverMatches) {
  cache_.Insert(3, std::vector<int32_t>{1, 2}, Pages(1));
  EXPECT_TRUE(cache_.Match(4, std::vector<int32_t>{1, 2}).empty());
  cache_.Insert(4, std::vector<int32_t>{1, 2}, Pages(1));
  cache_.KeepOnly(4);
  EXPECT_TRUE(cache_.Match(3, std::vector<int32_t>{1, 2}).empty());
  EXPECT_EQ(cache_.Match(4, std::vector<int32_t>{1, 2}).size(), 1u);
  EXPECT_EQ(cache_.num_pages(), 1);
  EXPECT_EQ(pool_.num_free(), 15);
}

TEST_F(PrefixCacheTest, InsertKeepsThePagesThatAreThere) {
  const std::vector<PageRef> first = Pages(1);
  cache_.Insert(0, std::vector<int32_t>{1, 2}, first);
  cache_.Insert(0, std::vector<int32_t>{1, 2, 3, 4}, Pages(2));
  EXPECT_EQ(cache_.Match(0, std::vector<int32_t>{1, 2})[0].page(), first[0].page());
  EXPECT_EQ(cache_.num_pages(), 2);
}

TEST_F(PrefixCacheTest, EvictsTheLeastRecentlyUsedLeafThatNobodyHolds) {
  std::vector<PageRef> held = Pages(1);
  cache_.Insert(0, std::vector<int32_t>{1, 2, 3, 4}, Pages(2));
  cache_.Insert(0, std::vector<int32_t>{5, 6}, Pages(1));
  cache_.Insert(0, std::vector<int32_t>{7, 8}, held);
  cache_.Match(0, std::vector<int32_t>{1, 2, 3, 4});
  EXPECT_EQ(cache_.NumEvictable(), 3);
  EXPECT_TRUE(cache_.EvictOne());  // {5, 6}: used longest ago
  EXPECT_TRUE(cache_.Match(0, std::vector<int32_t>{5, 6}).empty());
  EXPECT_TRUE(cache_.EvictOne());  // {3, 4}: the leaf before its parent
  EXPECT_EQ(cache_.Match(0, std::vector<int32_t>{1, 2, 3, 4}).size(), 1u);
  EXPECT_TRUE(cache_.EvictOne());
  EXPECT_FALSE(cache_.EvictOne());  // {7, 8} is held
  EXPECT_EQ(cache_.Match(0, std::vector<int32_t>{7, 8}).size(), 1u);
  held.clear();
  EXPECT_TRUE(cache_.EvictOne());
  EXPECT_EQ(pool_.num_free(), 16);
}

TEST_F(PrefixCacheTest, AHeldChildKeepsItsParentFromBeingCounted) {
  std::vector<PageRef> pages = Pages(2);
  cache_.Insert(0, std::vector<int32_t>{1, 2, 3, 4}, pages);
  pages.erase(pages.begin());  // the parent is the cache's alone, its child is not
  EXPECT_EQ(cache_.NumEvictable(), 0);
  EXPECT_FALSE(cache_.EvictOne());
}

}  // namespace
}  // namespace rollcast
