#include "launch/signals.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace rollcast {
namespace {

TEST(Signals, TheFirstOneSetsTheFlag) {
  CatchSignals();
  EXPECT_EQ(StopSignal(), 0);
  std::raise(SIGTERM);
  EXPECT_EQ(StopSignal(), SIGTERM);
  EXPECT_STREQ(SignalName(StopSignal()), "SIGTERM");
  CatchSignals();
  EXPECT_EQ(StopSignal(), 0);
  std::raise(SIGINT);
  EXPECT_EQ(StopSignal(), SIGINT);
  EXPECT_STREQ(SignalName(StopSignal()), "SIGINT");
  CatchSignals();
}

TEST(SignalsDeathTest, TheSecondOneEndsTheProcess) {
  EXPECT_EXIT(
      {
        CatchSignals();
        std::raise(SIGTERM);
        for (;;) std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(SignalsDeathTest, OneThatComesTwiceAtOnceIsOne) {
  EXPECT_EXIT(
      {
        CatchSignals();
        std::raise(SIGTERM);
        std::raise(SIGTERM);
        std::_Exit(StopSignal() == SIGTERM ? 3 : 4);
      },
      testing::ExitedWithCode(3), "");
}

TEST(Signals, UnderMpirunFurtherOnesChangeNothing) {
  CatchSignals(SecondSignal::kIsIgnored);
  std::raise(SIGINT);
  for (int i = 0; i < 3; ++i) std::raise(SIGTERM);
  EXPECT_EQ(StopSignal(), SIGINT);
  CatchSignals();
}

TEST(Signals, ABrokenPipeDoesNotEndTheProcess) {
  CatchSignals();
  EXPECT_EQ(std::raise(SIGPIPE), 0);
  EXPECT_EQ(StopSignal(), 0);
}

}  // namespace
}  // namespace rollcast
