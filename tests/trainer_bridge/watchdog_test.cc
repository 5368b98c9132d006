#include "trainer_bridge/watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <future>

namespace rollcast {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(Watchdog, CallsWhenItsLimitHasPassed) {
  std::promise<void> called;
  const Watchdog watchdog(milliseconds(1), [&] { called.set_value(); });
  EXPECT_EQ(called.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

TEST(Watchdog, CallsNobodyOnceItIsGone) {
  std::atomic<int> calls{0};
  {
    const Watchdog watchdog(hours(1), [&] { ++calls; });
  }
  EXPECT_EQ(calls, 0);
}

TEST(WatchdogDeathTest, MayEndTheProcessThatItWatches) {
  EXPECT_EXIT(
      {
        const Watchdog watchdog(milliseconds(1), [] { std::_Exit(7); });
        for (;;) std::this_thread::sleep_for(milliseconds(10));
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace rollcast
