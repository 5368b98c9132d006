#include "rollout/rollout_buffer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kernels/check.h"

namespace rollcast {
namespace {

std::vector<Trajectory> MakeBatch(PolicyVersion version, int count = 3) {
  std::vector<Trajectory> batch(count);
  for (int i = 0; i < count; ++i) {
    batch[i].prompt_id = "p";
    batch[i].sample_index = i;
    batch[i].completion = {1, 2, 3};
    batch[i].spans = {{0, 3, version}};
    batch[i].reward = 0.5;
  }
  return batch;
}

std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(RolloutBufferTest, ReusesForTheIntervalAndThenGenerates) {
  LivePolicy policy;
  RolloutBuffer buffer({3, 2, 1});
  int generated = 0;
  PolicyVersion live = 0;
  const auto generate = [&](int) {
    ++generated;
    return MakeBatch(live);
  };
  for (int step = 0; step < 9; ++step) {
    const RolloutBatch batch = buffer.Get(step, policy, generate);
    EXPECT_EQ(batch.reused, step % 3 != 0) << step;
    EXPECT_EQ(batch.lag, step % 3);
    EXPECT_EQ(batch.live_version, step);
    EXPECT_EQ(batch.tries, step % 3 == 0 ? 1 : 0);
    for (const Trajectory& t : *batch.trajectories) EXPECT_EQ(t.live_version_at_return, step);
    policy.Publish(++live);
  }
  EXPECT_EQ(generated, 3);
}

TEST(RolloutBufferTest, ABatchGivenOutBeforeIsNotChanged) {
  LivePolicy policy;
  RolloutBuffer buffer({2, 1, 1});
  const auto generate = [](int) { return MakeBatch(0); };
  const RolloutBatch first = buffer.Get(0, policy, generate);
  policy.Publish(1);
  const RolloutBatch second = buffer.Get(1, policy, generate);
  EXPECT_EQ(first.trajectories->at(0).live_version_at_return, 0);
  EXPECT_EQ(second.trajectories->at(0).live_version_at_return, 1);
}

TEST(RolloutBufferTest, GeneratesWhenTheHeldBatchIsOverLag) {
  LivePolicy policy;
  RolloutBuffer buffer({4, 3, 1});
  EXPECT_FALSE(buffer.Get(0, policy, [](int) { return MakeBatch(0); }).reused);
  policy.Publish(3);
  EXPECT_TRUE(buffer.Get(1, policy, [](int) { return MakeBatch(3); }).reused);
  policy.Publish(4);  // more updates than optimizer steps
  const RolloutBatch batch = buffer.Get(2, policy, [](int) { return MakeBatch(4); });
  EXPECT_FALSE(batch.reused);
  EXPECT_EQ(batch.lag, 0);
}

TEST(RolloutBufferTest, AnEarlierStepIsNotServedFromTheBuffer) {
  LivePolicy policy;
  RolloutBuffer buffer({4, 3, 1});
  int generated = 0;
  const auto generate = [&](int) {
    ++generated;
    return MakeBatch(0);
  };
  buffer.Get(10, policy, generate);
  EXPECT_FALSE(buffer.Get(2, policy, generate).reused);
  EXPECT_TRUE(buffer.Get(3, policy, generate).reused);
  buffer.Clear();
  EXPECT_FALSE(buffer.Get(3, policy, generate).reused);
  EXPECT_EQ(generated, 3);
}

TEST(RolloutBufferTest, RegeneratesWhatAnUpdateMadeTooOldWhileItWasScored) {
  LivePolicy policy;
  RolloutBuffer buffer({1, 0, 3});
  std::vector<int> attempts;
  const RolloutBatch batch = buffer.Get(0, policy, [&](int attempt) {
    attempts.push_back(attempt);
    if (attempt == 0) policy.Publish(1);  // falls between generation and the return
    return MakeBatch(attempt == 0 ? 0 : 1);
  });
  EXPECT_EQ(attempts, (std::vector<int>{0, 1}));
  EXPECT_EQ(batch.tries, 2);
  EXPECT_EQ(batch.live_version, 1);
  EXPECT_EQ(batch.trajectories->at(0).spans[0].version, 1);
}

TEST(RolloutBufferTest, RefusesAfterTheLastTryAndSaysByHowMuch) {
  LivePolicy policy(7);
  RolloutBuffer buffer({2, 1, 2});
  int generated = 0;
  EXPECT_EQ(ErrorOf([&] {
              buffer.Get(5, policy, [&](int) {
                ++generated;
                return MakeBatch(3);
              });
            }),
            "optimizer step 5: 2 batches of rollouts were over the policy lag, the last by 3: "
            "prompt p sample 0 sampled under policy version 3, version 7 is live: policy lag 4, 3 "
            "over max_policy_lag 1. Raise rollout.max_policy_lag or publish less often");
  EXPECT_EQ(generated, 2);
}

TEST(RolloutBufferTest, BrokenBatchesAreErrorsAtOnce) {
  LivePolicy policy;
  RolloutBuffer buffer({1, 0, 5});
  int generated = 0;
  EXPECT_EQ(ErrorOf([&] {
              buffer.Get(0, policy, [&](int) {
                ++generated;
                return MakeBatch(1);
              });
            }),
            "prompt p sample 0 sampled under policy version 1, but version 0 is live");
  EXPECT_EQ(ErrorOf([&] {
              buffer.Get(0, policy, [&](int) {
                ++generated;
                auto batch = MakeBatch(0);
                batch[1].completion.push_back(4);
                return batch;
              });
            }),
            "prompt p sample 1 policy spans cover 3 of 4 completion tokens");
  EXPECT_EQ(ErrorOf([&] { buffer.Get(8, policy, [](int) { return std::vector<Trajectory>(); }); }),
            "no rollouts were generated for optimizer step 8");
  EXPECT_EQ(generated, 2);
}

TEST(RolloutBufferTest, OnlyCompletedTrajectoriesAreHeldToTheLimit) {
  LivePolicy policy(9);
  RolloutBuffer buffer({1, 0, 1});
  const RolloutBatch batch = buffer.Get(0, policy, [](int) {
    auto batch = MakeBatch(9);
    batch[1].outcome = Outcome::kAborted;
    batch[1].spans = {{0, 3, 2}};
    return batch;
  });
  EXPECT_EQ(batch.lag, 0);
  EXPECT_EQ(batch.trajectories->size(), 3u);
}

TEST(RolloutBufferTest, FailedGenerationLeavesNothingBehind) {
  LivePolicy policy;
  RolloutBuffer buffer({2, 1, 1});
  buffer.Get(0, policy, [](int) { return MakeBatch(0); });
  EXPECT_THROW(
      buffer.Get(2, policy, [](int) -> std::vector<Trajectory> { throw Error("scorer is gone"); }),
      Error);
  EXPECT_FALSE(buffer.Get(1, policy, [](int) { return MakeBatch(0); }).reused);
}

TEST(RolloutBufferTest, ConfigurationThatCannotHoldIsRefused) {
  const auto refusal = [](ReuseConfig config) { return ErrorOf([&] { CheckReuse(config); }); };
  EXPECT_EQ(refusal({1, 0, 1}), "no error");
  EXPECT_EQ(refusal({4, 3, 1}), "no error");
  EXPECT_EQ(refusal({4, 2, 1}),
            "rollout.max_policy_lag is 2 and rollout.interval is 4: the last of 4 optimizer steps "
            "that share a batch finds it 3 versions old. Set rollout.max_policy_lag to at least 3 "
            "or rollout.interval to at most 3");
  EXPECT_EQ(refusal({0, 2, 1}), "rollout.interval is 0; it must be at least 1");
  EXPECT_EQ(refusal({1, -1, 1}), "rollout.max_policy_lag is -1; it must be at least 0");
  EXPECT_EQ(refusal({1, 0, 0}), "rollout.max_tries is 0; it must be at least 1");
  EXPECT_THROW(RolloutBuffer({4, 2, 1}), Error);
}

// A publisher commits as fast as it can. Whatever Get returns must be within the lag at the moment
// of the return: the version that the publisher itself keeps, read while handing over, is the one
// that the decision was made for. Every fresh batch waits for an update since the last return, so
// that updates do fall between the steps however late the publisher gets its turn.
TEST(RolloutBufferTest, NoUpdateFallsBetweenDecisionAndReturn) {
  LivePolicy policy;
  std::atomic<PolicyVersion> committed{0};
  std::atomic<bool> stop{false};
  std::thread publisher([&] {
    PolicyVersion next = 1;
    while (!stop.load()) {
      policy.Publish(next, [&] { committed.store(next); });
      ++next;
      std::this_thread::yield();
    }
  });
  RolloutBuffer buffer({2, 1, 1000000});
  int handed_over = 0, regenerated = 0;
  PolicyVersion last = 0;
  for (int step = 0; step < 400; ++step) {
    const RolloutBatch batch = buffer.Get(
        step, policy,
        [&](int) {
          while (committed.load() == last) std::this_thread::yield();
          auto batch = MakeBatch(committed.load());
          std::this_thread::yield();
          return batch;
        },
        [&](const RolloutBatch& batch) {
          for (int i = 0; i < 20; ++i) {
            std::this_thread::yield();
            ASSERT_EQ(committed.load(), batch.live_version);
          }
          for (const Trajectory& t : *batch.trajectories)
            ASSERT_LE(committed.load() - t.version_first(), 1);
          ++handed_over;
        });
    regenerated += batch.tries > 1;
    last = batch.live_version;
    ASSERT_LE(batch.lag, 1);
  }
  stop.store(true);
  publisher.join();
  EXPECT_EQ(handed_over, 400);
  EXPECT_GE(committed.load(), 200);
  RecordProperty("regenerated", regenerated);
}

}  // namespace
}  // namespace rollcast
