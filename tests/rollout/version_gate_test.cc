#include "rollout/version_gate.h"

#include <gtest/gtest.h>

#include "kernels/check.h"

namespace rollcast {
namespace {

using Spans = std::vector<PolicySpan>;

TEST(VersionGateTest, AcceptsUpToTheLimit) {
  const Spans spans = {{0, 4, 3}, {4, 10, 5}};
  for (const PolicyVersion live : {5, 6}) {
    const GateDecision decision = VersionGate(spans, 10, live, 3);
    EXPECT_TRUE(decision.accepted());
    EXPECT_EQ(decision.lag, live - 3);
    EXPECT_EQ(decision.reason, "");
  }
}

TEST(VersionGateTest, LagIsThatOfTheOldestToken) {
  const GateDecision decision = VersionGate(Spans{{0, 1, 3}, {1, 10, 8}}, 10, 8, 2);
  EXPECT_EQ(decision.verdict, GateVerdict::kOverLag);
  EXPECT_EQ(decision.lag, 5);
  EXPECT_EQ(decision.over_by, 3);
  EXPECT_EQ(decision.reason,
            "sampled under policy version 3, version 8 is live: policy lag 5, 3 over "
            "max_policy_lag 2");
}

TEST(VersionGateTest, LimitZeroTakesTheLiveVersionOnly) {
  EXPECT_TRUE(VersionGate(Spans{{0, 2, 7}}, 2, 7, 0).accepted());
  EXPECT_EQ(VersionGate(Spans{{0, 2, 7}}, 2, 8, 0).over_by, 1);
}

TEST(VersionGateTest, RejectsAFutureVersion) {
  const GateDecision decision = VersionGate(Spans{{0, 2, 7}, {2, 3, 9}}, 3, 8, 4);
  EXPECT_EQ(decision.verdict, GateVerdict::kFutureVersion);
  EXPECT_EQ(decision.reason, "sampled under policy version 9, but version 8 is live");
}

TEST(VersionGateTest, RejectsSpansThatDoNotCover) {
  const auto reason = [](const Spans& spans, int64_t length) {
    const GateDecision decision = VersionGate(spans, length, 9, 100);
    EXPECT_EQ(decision.verdict, GateVerdict::kBadSpans);
    return decision.reason;
  };
  EXPECT_EQ(reason({{0, 4, 1}}, 5), "policy spans cover 4 of 5 completion tokens");
  EXPECT_EQ(reason({{0, 6, 1}}, 5), "policy spans cover 6 of 5 completion tokens");
  EXPECT_EQ(reason({}, 5), "policy spans cover 0 of 5 completion tokens");
  EXPECT_EQ(reason({{0, 2, 1}, {3, 5, 2}}, 5), "policy span [3, 5) follows 2 covered tokens");
  EXPECT_EQ(reason({{0, 2, 1}, {1, 5, 2}}, 5), "policy span [1, 5) follows 2 covered tokens");
  EXPECT_EQ(reason({{0, 2, 1}, {2, 2, 2}, {2, 5, 3}}, 5),
            "policy span [2, 2) follows 2 covered tokens");
  EXPECT_EQ(reason({{1, 5, 1}}, 5), "policy span [1, 5) follows 0 covered tokens");
  EXPECT_EQ(reason({{0, 2, 4}, {2, 5, 3}}, 5), "policy version falls from 4 to 3 at token 2");
  EXPECT_EQ(reason({{0, 5, -1}}, 5), "policy version -1");
}

TEST(VersionGateTest, EmptyCompletionHasNoLag) {
  EXPECT_TRUE(VersionGate({}, 0, 100, 0).accepted());
  EXPECT_THROW((void)VersionGate({}, 0, 100, -1), CheckFailure);
}

}  // namespace
}  // namespace rollcast
