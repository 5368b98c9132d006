#include "engine/kv_cache.h"

#include <gtest/gtest.h>

namespace rollcast {
namespace {

TEST(PagePool, CopySharesAndTheLastHandleFrees) {
  PagePool pool(2);
  PageRef a = pool.Allocate();
  EXPECT_FALSE(a.shared());
  {
    const PageRef b = a;
    EXPECT_TRUE(a.shared());
    EXPECT_EQ(b.page(), a.page());
  }
  EXPECT_FALSE(a.shared());
  EXPECT_EQ(pool.num_free(), 1);
  a = PageRef();
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(PagePool, GivesEveryPageOnceThenNone) {
  PagePool pool(3);
  std::vector<PageRef> held;
  std::vector<bool> seen(3, false);
  for (int i = 0; i < 3; ++i) {
    held.push_back(pool.Allocate());
    ASSERT_TRUE(held.back());
    EXPECT_FALSE(seen[held.back().page()]);
    seen[held.back().page()] = true;
  }
  EXPECT_FALSE(pool.Allocate());
}

TEST(PagePool, MoveLeavesTheCountAlone) {
  PagePool pool(1);
  PageRef a = pool.Allocate();
  const PageRef b = std::move(a);
  EXPECT_FALSE(b.shared());
  EXPECT_EQ(pool.num_free(), 0);
}

}  // namespace
}  // namespace rollcast
