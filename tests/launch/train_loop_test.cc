#include "launch/train_loop.h"

#include <gtest/gtest.h>

namespace rollcast {
namespace {

UpdateRecord Record(int update, double reward, int aborted) {
  UpdateRecord record;
  record.update = update;
  record.version = update;
  record.reward = reward;
  record.sync.sequences_aborted = aborted;
  return record;
}

TEST(TrainLoop, TheTableCountsAbortedCompletionsOverItsRows) {
  std::vector<UpdateRecord> records;
  for (int update = 1; update <= 12; ++update) records.push_back(Record(update, 0.5, update));
  const std::string table = Table(records);
  EXPECT_NE(table.find("left out  aborted"), std::string::npos) << table;
  EXPECT_NE(table.find("      1-2        2    0.500   0.00          0        0        3 "),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("    11-12       12    0.500   0.00          0        0       23 "),
            std::string::npos)
      << table;
}

TEST(TrainLoop, TokensPerSecondOfARowAreThoseOfItsWholeTime) {
  std::vector<UpdateRecord> records;
  for (int update = 1; update <= 11; ++update) records.push_back(Record(update, 0.5, 0));
  records[0].tokens = records[1].tokens = 900;
  records[0].total_s = 1;
  records[1].total_s = 9;
  EXPECT_NE(ProgressLine(records[0], 11).find("  900 tokens/s"), std::string::npos);
  EXPECT_NE(ProgressLine(records[1], 11).find("  100 tokens/s"), std::string::npos);
  const std::string table = Table(records);
  EXPECT_NE(table.find("      1-2        2    0.500   0.00        180        0 "),
            std::string::npos)
      << table;
}

TEST(TrainLoop, WhatUpdatesHaveCostIsSaid) {
  EXPECT_EQ(AbortedLine({Record(1, 0, 0), Record(2, 0, 0)}), "");
  EXPECT_EQ(AbortedLine({Record(1, 0, 5), Record(2, 0, 0), Record(3, 0, 7)}),
            "2 of 3 updates aborted 12 completions, which were paid for and not trained on\n");
}

TEST(TrainLoop, FiveUpdatesOfEqualRewardsAreNothingToLearnFrom) {
  std::vector<UpdateRecord> records;
  for (int update = 1; update <= 4; ++update) records.push_back(Record(update, 0, 0));
  EXPECT_FALSE(NothingToLearn(records));
  records.push_back(Record(5, 0, 0));
  EXPECT_TRUE(NothingToLearn(records));
  records.push_back(Record(6, 0, 0));
  records.back().grpo.groups_with_signal = 1;
  EXPECT_FALSE(NothingToLearn(records));
}

TEST(TrainLoop, TheGainComparesUpdatesThatDoNotOverlap) {
  std::vector<UpdateRecord> records;
  EXPECT_FALSE(RewardGain(records).has_value());
  const double rewards[] = {1, 2, 9, 4, 5, 6, 7, 8, 9, 10, 12};
  const auto gain = [&](int updates) {
    records.clear();
    for (int i = 0; i < updates; ++i) records.push_back(Record(i + 1, rewards[i], 0));
    return RewardGain(records);
  };
  EXPECT_FALSE(gain(1).has_value());
  EXPECT_DOUBLE_EQ(gain(2).value(), 1);
  EXPECT_DOUBLE_EQ(gain(3).value(), 8);
  EXPECT_DOUBLE_EQ(gain(5).value(), 4.5 - 1.5);
  EXPECT_DOUBLE_EQ(gain(11).value(), 9.2 - 4.2);
}

TEST(TrainLoop, RolloutsGoOnDuringUpdatesWhereTheLagAllowsIt) {
  Config config;
  config.rollout.interval = 2;
  config.rollout.max_policy_lag = 1;
  EXPECT_FALSE(GeneratesDuringUpdates(config));
  config.rollout.max_policy_lag = 2;
  EXPECT_TRUE(GeneratesDuringUpdates(config));
}

}  // namespace
}  // namespace rollcast
