// The coordinator's protocol.
#include "trainer_bridge/coordinator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tests/testing/coordinator_fixture.h"
#include "tests/testing/expect_error.h"

namespace rollcast {
namespace {

using testing::Contains;
using testing::CoordinatorTest;
using testing::ExpectError;
using testing::kTrainer;
using namespace std::chrono_literals;

TEST_F(CoordinatorTest, GivesWorkToRanksThatAskAndReturnsWholeGroups) {
  Make({1, 2});
  Start();
  Submit(10, 4);
  Submit(11, 4);
  const auto first = TakeWork(1), second = TakeWork(2);
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(first[0].samples, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_NE(first[0].group_id, second[0].group_id);

  Collect(2);
  Return(1, first[0], 0);
  EXPECT_TRUE(Take<CollectReply>(kTrainer).empty()) << "one group is still out";
  Return(2, second[0], 0);
  const auto replies = Take<CollectReply>(kTrainer);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].request, 1u);
  EXPECT_EQ(replies[0].groups, 2);
  EXPECT_EQ(replies[0].pending_groups, 0);
  EXPECT_EQ(replies[0].trajectories.size(), 8u);
  EXPECT_EQ(appended_.size(), 8u);
}

TEST_F(CoordinatorTest, WaitsForTheFirstPullOfEveryRankBeforeItHandsOut) {
  Make({1, 2});
  for (int rank : workers_) Say(rank, ReadyMessage{});
  Submit(10, 4);
  Submit(11, 4);
  Pull(1, 64);
  EXPECT_TRUE(TakeWork(1).empty());
  Pull(2, 64);
  EXPECT_EQ(TakeWork(1).size(), 1u);
  EXPECT_EQ(TakeWork(2).size(), 1u);
}

TEST_F(CoordinatorTest, ARankThatIsBusyDoesNotHoldUpTheOthers) {
  Make({1, 2});
  Start(4);
  for (uint64_t id = 10; id < 16; ++id) Submit(id, 4);
  const auto slow = TakeWork(1);
  ASSERT_EQ(slow.size(), 1u);
  for (int i = 0; i < 5; ++i) {  // rank 2 takes all the rest, one after another
    const auto work = TakeWork(2);
    ASSERT_EQ(work.size(), 1u);
    Return(2, work[0], 0);
    Pull(2, 4);
  }
  EXPECT_TRUE(TakeWork(2).empty());
  EXPECT_EQ(coordinator_->stats().ready, 5);
  EXPECT_EQ(coordinator_->stats().assigned, 4);
}

TEST_F(CoordinatorTest, DropsAPullThatCrossedAHandOut) {
  Make({1});
  Start(4);
  Submit(10, 4);
  Pull(1, 4);  // sent before the rank had group 10
  ASSERT_EQ(TakeWork(1).size(), 1u);
  Submit(11, 4);
  EXPECT_TRUE(TakeWork(1).empty()) << "the rank has no room";
  Pull(1, 4);
  EXPECT_EQ(TakeWork(1).size(), 1u);
}

TEST_F(CoordinatorTest, AGroupLargerThanAnyRoomGoesToAnIdleRank) {
  Make({1});
  Start(4);
  Submit(10, 9);
  const auto work = TakeWork(1);
  ASSERT_EQ(work.size(), 1u);
  EXPECT_EQ(work[0].samples.size(), 9u);
}

TEST_F(CoordinatorTest, TheFileHasItBeforeTheTrainerHasIt) {
  Make({1});
  CoordinatorSeams seams;
  seams.send = [this](int rank, JobMessage message) {
    if (std::holds_alternative<CollectReply>(message)) order_.push_back("reply");
    sent_.emplace_back(rank, std::move(message));
  };
  seams.live_version = [] { return 7; };
  seams.append = [this](std::span<const Trajectory> t) {
    for (const Trajectory& one : t) EXPECT_EQ(one.live_version_at_return, 7);
    order_.push_back("append");
  };
  CoordinatorOptions options;
  options.workers = {1};
  options.trainer = kTrainer;
  coordinator_ = std::make_unique<Coordinator>(options, seams, now_);
  Start();
  Submit(10, 2);
  Return(1, TakeWork(1).at(0), 7);
  Collect(1);
  EXPECT_EQ(order_, (std::vector<std::string>{"append", "reply"}));
}

TEST_F(CoordinatorTest, ATooOldCompletionIsMadeAgainWithTheSameSeedUnderTheNewPolicy) {
  Make({1}, /*max_tries=*/3, /*max_lag=*/1);
  Start();
  Submit(10, 2);
  const GroupWork work = TakeWork(1).at(0);
  ResultsMessage results;
  results.trajectories = {Done(work, 0, 3), Done(work, 1, 1)};
  Say(1, results);
  live_ = 3;  // sample 1 is two versions old by now
  Collect(1);
  EXPECT_TRUE(Take<CollectReply>(kTrainer).empty());
  Pull(1, 64);
  const GroupWork again = TakeWork(1).at(0);
  EXPECT_EQ(again.group_id, 10u);
  EXPECT_EQ(again.samples, (std::vector<int32_t>{1})) << "the one that is fresh is kept";
  EXPECT_EQ(again.attempt, 1);
  EXPECT_EQ(again.sampling.seed, work.sampling.seed);
  Return(1, again, 3);
  const auto replies = Take<CollectReply>(kTrainer);
  ASSERT_EQ(replies.size(), 1u);
  ASSERT_EQ(replies[0].trajectories.size(), 2u);
  EXPECT_EQ(replies[0].trajectories[0].attempt, 0);
  EXPECT_EQ(replies[0].trajectories[1].attempt, 1);
  for (const Trajectory& t : replies[0].trajectories) {
    EXPECT_EQ(t.outcome, Outcome::kCompleted);
    EXPECT_EQ(t.live_version_at_return, 3);
  }
  EXPECT_EQ(coordinator_->stats().regenerated, 1);
}

TEST_F(CoordinatorTest, OverLagIsReturnedAndMarkedWhenTheTriesAreUsedUp) {
  Make({1}, /*max_tries=*/2, /*max_lag=*/0);
  Start();
  Submit(10, 1);
  Collect(1);
  live_ = 1;
  Return(1, TakeWork(1).at(0), 0);
  Pull(1, 64);
  live_ = 2;
  Return(1, TakeWork(1).at(0), 1);
  const auto replies = Take<CollectReply>(kTrainer);
  ASSERT_EQ(replies.size(), 1u);
  const Trajectory& t = replies[0].trajectories.at(0);
  EXPECT_EQ(t.outcome, Outcome::kOverLag);
  EXPECT_NE(t.message.find("given up after 2 tries"), std::string::npos) << t.message;
  EXPECT_EQ(t.attempt, 1);
  EXPECT_EQ(t.live_version_at_return, 2);
}

TEST_F(CoordinatorTest, TheGateLooksAgainWhenAReadyGroupHasBecomeTooOld) {
  Make({1}, 3, 0);
  Start();
  Submit(10, 1);
  Return(1, TakeWork(1).at(0), 0);
  EXPECT_EQ(coordinator_->stats().ready, 1);
  live_ = 1;  // an update between the scoring and the return
  Collect(1);
  EXPECT_TRUE(Take<CollectReply>(kTrainer).empty());
  EXPECT_TRUE(appended_.empty());
  EXPECT_EQ(coordinator_->stats().queued, 1);
}

TEST_F(CoordinatorTest, PartialAndUnscoredOutcomesAreReturnedAsTheyAre) {
  Make({1}, 3, 0);
  Start();
  Submit(10, 2);
  const GroupWork work = TakeWork(1).at(0);
  ResultsMessage results;
  results.trajectories = {Done(work, 0, 0, Outcome::kAborted),
                          Done(work, 1, 0, Outcome::kScoringFailed)};
  live_ = 5;
  Say(1, results);
  Collect(1);
  const auto replies = Take<CollectReply>(kTrainer);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].trajectories[0].outcome, Outcome::kAborted);
  EXPECT_EQ(replies[0].trajectories[1].outcome, Outcome::kScoringFailed);
}

TEST_F(CoordinatorTest, CollectReturnsWhatThereIsAtItsDeadline) {
  Make({1, 2});
  Start();
  Submit(10, 1);
  Submit(11, 1);
  Return(1, TakeWork(1).at(0), 0);
  Collect(2, 3.0);
  now_ += 2s;
  coordinator_->Tick(now_);
  EXPECT_TRUE(Take<CollectReply>(kTrainer).empty());
  now_ += 2s;
  coordinator_->Tick(now_);
  const auto replies = Take<CollectReply>(kTrainer);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].groups, 1);
  EXPECT_EQ(replies[0].pending_groups, 1);
}

TEST_F(CoordinatorTest, AnAbortEndsWhatIsPendingAndNothingLater) {
  Make({1, 2}, /*max_tries=*/3, /*max_lag=*/0);
  Start(/*room=*/2);
  for (uint64_t id : {10, 11, 12}) Submit(id, 2);
  const auto first = TakeWork(1), second = TakeWork(2);
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(second.size(), 1u);
  Say(kTrainer, AbortMessage{"cancelled"});
  for (int rank : workers_) {
    const auto aborts = Take<AbortMessage>(rank);
    ASSERT_EQ(aborts.size(), 1u);
    EXPECT_EQ(aborts[0].message, "cancelled");
  }
  // What comes after it is work like any other.
  Submit(13, 2);
  Collect(3);
  live_ = 1;
  ResultsMessage results;
  results.trajectories = {Done(first[0], 0, 0), Done(first[0], 1, 1)};
  Say(1, results);
  Pull(1, 2);
  const auto later = TakeWork(1);
  ASSERT_EQ(later.size(), 1u) << "the over-lag sample is not made again";
  EXPECT_EQ(later[0].group_id, 13u);
  coordinator_->Lose(2, "it was killed", now_);
  EXPECT_TRUE(TakeWork(1).empty()) << "nor is what the lost rank had";
  const auto replies = Take<CollectReply>(kTrainer);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].pending_groups, 1);
  std::map<std::string, std::string> outcomes;
  for (const Trajectory& t : replies[0].trajectories)
    outcomes[StrCat(t.group_id, "/", t.sample_index)] = StrCat(Name(t.outcome), ": ", t.message);
  EXPECT_EQ(outcomes.size(), 6u);
  EXPECT_TRUE(Contains(outcomes["10/0"], "over_lag: ")) << outcomes["10/0"];
  EXPECT_TRUE(Contains(outcomes["10/0"], "; given up after 1 tries: cancelled"))
      << outcomes["10/0"];
  EXPECT_EQ(outcomes["10/1"], "completed: ");
  for (const char* sample : {"11/0", "11/1"})
    EXPECT_EQ(outcomes[sample], "failed: rollout rank 2 is lost: it was killed");
  for (const char* sample : {"12/0", "12/1"}) EXPECT_EQ(outcomes[sample], "aborted: cancelled");
  live_ = 2;
  Return(1, later[0], 1);
  Collect(1);
  ASSERT_EQ(TakeWork(1).size(), 0u);
  Pull(1, 2);
  EXPECT_EQ(TakeWork(1).size(), 1u) << "a later group has its tries";
}

TEST_F(CoordinatorTest, AReplyIsNotLargerThanAMessageMayBe) {
  Make({1});
  Start();
  for (uint64_t id : {10, 11}) {
    Submit(id, 1);
    ResultsMessage results;
    results.trajectories.push_back(Done(TakeWork(1).at(0), 0, 0));
    Pull(1, 64);
    results.trajectories.back().hidden.resize(kMessageBytes / 4);
    Say(1, results);
  }
  Collect(2);
  auto replies = Take<CollectReply>(kTrainer);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].groups, 1);
  EXPECT_EQ(replies[0].pending_groups, 1);
  EXPECT_TRUE(replies[0].more);
  Collect(1);
  replies = Take<CollectReply>(kTrainer);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].groups, 1);
  EXPECT_FALSE(replies[0].more);
}

TEST_F(CoordinatorTest, AGroupLargerThanAMessageComesInParts) {
  Make({1});
  Start();
  for (uint64_t id : {10, 11}) {
    Submit(id, 5);
    const GroupWork work = TakeWork(1).at(0);
    Pull(1, 64);
    ResultsMessage results;
    for (int sample = 0; sample < 5; ++sample) {
      results.trajectories.push_back(Done(work, sample, 0));
      if (id == 10) results.trajectories.back().hidden.resize(kMessageBytes / 10);
    }
    Say(1, results);
  }
  std::vector<int> samples;
  int groups = 0, replies = 0;
  for (bool more = true; more; ++replies) {
    ASSERT_LT(replies, 10);
    Collect(2 - groups);
    auto reply = Take<CollectReply>(kTrainer).at(0);
    groups += reply.groups;
    EXPECT_EQ(reply.pending_groups, 2 - groups);
    size_t bytes = 0;
    for (const Trajectory& t : reply.trajectories) {
      EXPECT_EQ(t.outcome, Outcome::kCompleted) << t.message;
      EXPECT_EQ(t.completion.size(), 2u);
      samples.push_back(static_cast<int>(t.group_id) * 10 + t.sample_index);
      bytes += WireBytes(t);
    }
    EXPECT_LE(bytes, kMessageBytes);
    more = reply.more;
  }
  EXPECT_EQ(groups, 2);
  EXPECT_EQ(replies, 3);
  EXPECT_EQ(samples, (std::vector<int>{100, 101, 102, 103, 104, 110, 111, 112, 113, 114}));
  EXPECT_EQ(appended_.size(), 10u);
}

TEST_F(CoordinatorTest, AWithdrawnCollectIsAnsweredAtOnceWithNothing) {
  Make({1});
  Start();
  Submit(10, 1);
  Submit(11, 1);
  const std::vector<GroupWork> work = TakeWork(1);
  Return(1, work.at(0), 0);
  Collect(2);
  EXPECT_TRUE(Take<CollectReply>(kTrainer).empty());
  Say(kTrainer, CollectMessage{request_, 0, 0});
  const auto replies = Take<CollectReply>(kTrainer);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].request, request_);
  EXPECT_TRUE(replies[0].trajectories.empty());
  EXPECT_EQ(replies[0].groups, 0);
  EXPECT_EQ(replies[0].pending_groups, 2);
  EXPECT_FALSE(replies[0].more);
  Say(kTrainer, CollectMessage{request_, 0, 0});
  EXPECT_TRUE(Take<CollectReply>(kTrainer).empty()) << "it has been answered";
  Collect(1);
  EXPECT_EQ(Take<CollectReply>(kTrainer).at(0).groups, 1) << "nothing was lost";
}

TEST_F(CoordinatorTest, CollectWithNothingPendingRepliesAtOnce) {
  Make({1});
  Start();
  Collect(3);
  const auto replies = Take<CollectReply>(kTrainer);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].groups, 0);
}

TEST_F(CoordinatorTest, ASilentRanksWorkGoesToAnotherOnce) {
  Make({1, 2, 3});
  Start();
  Submit(10, 2);
  Submit(11, 2);
  Submit(12, 2);
  const GroupWork lost = TakeWork(2).at(0);
  TakeWork(1);
  TakeWork(3);
  ResultsMessage half;
  half.trajectories = {Done(lost, 0, 0)};
  Say(2, half);
  Pull(3, 64);
  for (int i = 0; i < 20; ++i) {
    now_ += 1s;
    Say(1, BeatMessage{});
    Say(3, BeatMessage{});
    Say(kTrainer, BeatMessage{});
    coordinator_->Tick(now_);
  }
  const auto told = Take<RankLostMessage>(kTrainer);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].rank, 2);
  const GroupWork again = TakeWork(3).at(0);
  EXPECT_EQ(again.group_id, lost.group_id);
  EXPECT_EQ(again.samples, (std::vector<int32_t>{1})) << "sample 0 had come back before";
  EXPECT_EQ(again.attempt, 1);
  EXPECT_EQ(Take<FailMessage>(2).size(), 1u);

  // A late answer of the rank that was given up must not count a second time.
  half.trajectories = {Done(lost, 1, 0)};
  Say(2, half);
  EXPECT_EQ(Take<FailMessage>(2).size(), 1u) << "it is told to leave";
  EXPECT_EQ(coordinator_->stats().ready, 0);

  // The second loss of the same sample is its outcome.
  coordinator_->Lose(3, "killed", now_);
  Collect(3);
  EXPECT_EQ(coordinator_->stats().ready, 1);
  now_ += 101s;
  Say(1, BeatMessage{});
  Say(kTrainer, BeatMessage{});
  coordinator_->Tick(now_);
  const auto replies = Take<CollectReply>(kTrainer);
  ASSERT_EQ(replies.size(), 1u);
  ASSERT_EQ(replies[0].trajectories.size(), 2u);
  EXPECT_EQ(replies[0].trajectories[0].outcome, Outcome::kCompleted);
  EXPECT_EQ(replies[0].trajectories[1].outcome, Outcome::kFailed);
  EXPECT_NE(replies[0].trajectories[1].message.find("rank 3"), std::string::npos);
}

TEST_F(CoordinatorTest, NobodyIsLostWhileTheCoordinatorItselfWasAway) {
  Make({1, 2});
  Start();
  coordinator_->Tick(now_);
  now_ += 300s;  // a long transfer, or a suspended process
  coordinator_->Tick(now_);
  EXPECT_TRUE(Take<RankLostMessage>(kTrainer).empty());
}

TEST_F(CoordinatorTest, ALostTrainerOrTheLastRankEndsTheJob) {
  Make({1, 2});
  Start();
  ExpectError([&] { coordinator_->Lose(kTrainer, "killed", now_); },
              {"trainer", "rank 0", "killed"});
  coordinator_->Lose(2, "killed", now_);
  ExpectError([&] { coordinator_->Lose(1, "killed", now_); }, {"rank 1", "killed"});
}

TEST_F(CoordinatorTest, ASilentTrainerIsNamed) {
  Make({1});
  Start();
  ExpectError(
      [&] {
        for (int i = 0; i < 20; ++i) {
          now_ += 1s;
          coordinator_->Tick(now_);
        }
      },
      {"the trainer (rank 0) is lost", "no sign of life"});
}

TEST_F(CoordinatorTest, RanksWithOtherWeightsAreRefusedByName) {
  Make({1, 2});
  Say(1, ReadyMessage{5, 6});
  ExpectError([&] { Say(2, ReadyMessage{5, 7}); }, {"rank 2", "rank 1", "different weights"});
  Make({1, 2});
  Say(1, ReadyMessage{5, 6});
  ExpectError([&] { Say(2, ReadyMessage{4, 6}); }, {"rank 2", "different models"});
}

TEST_F(CoordinatorTest, ARankThatNeverGetsReadyIsNamedAtTheStartupDeadline) {
  Make({1, 2});
  Say(1, ReadyMessage{});
  ExpectError(
      [&] {
        for (int i = 0; i < 400; ++i) {
          now_ += 2s;
          Say(kTrainer, BeatMessage{});
          coordinator_->Tick(now_);
        }
      },
      {"rank 2", "not ready within 600 s"});
}

TEST_F(CoordinatorTest, ScoreRequestsGoToARankAndMoveWhenItIsLost) {
  Make({1, 2});
  Start();
  Say(kTrainer, ScoreMessage{{77, {1, 2, 3}, false}});
  auto work = Take<WorkMessage>(1);
  ASSERT_EQ(work.size(), 1u);
  ASSERT_EQ(work[0].scores.size(), 1u);
  Say(kTrainer, ScoreMessage{{78, {1, 2}, false}});
  Take<WorkMessage>(1);
  ResultsMessage results;
  results.scores.push_back({.id = 77, .logprob_raw = {-1, -2}});
  Say(2, results);  // not the rank that was asked
  EXPECT_TRUE(Take<ScoreReply>(kTrainer).empty());
  Say(1, results);
  const auto replies = Take<ScoreReply>(kTrainer);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].result.logprob_raw, (std::vector<float>{-1, -2}));
}

// Whatever is lost, aborted, too old or late: each submitted sample comes back exactly once.
TEST_F(CoordinatorTest, ExactlyOneOutcomeUnderRandomTrouble) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
    sent_.clear();
    hand_outs_.clear();
    appended_.clear();
    live_ = 0;
    Make({1, 2, 3, 4}, 3, 1);
    Start(6);
    std::set<int> dead;
    std::map<int, std::vector<std::pair<GroupWork, int32_t>>> held;
    std::vector<std::pair<int, Trajectory>> late;  // results that come a second time
    std::map<std::pair<uint64_t, int32_t>, int> outcomes;
    uint64_t submitted = 0;
    bool waiting = false;
    for (int round = 0; round < 3000; ++round) {
      if (submitted < 20 && chance(20)) Submit(++submitted, 1 + static_cast<int>(random() % 5));
      if (!waiting && chance(10)) {
        Collect(1 + static_cast<int>(random() % 4), 5);
        waiting = true;
      }
      if (!waiting && chance(5)) ++live_;
      if (chance(1)) Say(kTrainer, AbortMessage{"cancelled"});
      for (int rank : workers_) {
        for (const GroupWork& work : TakeWork(rank))
          for (int32_t sample : work.samples) held[rank].emplace_back(work, sample);
        if (dead.count(rank)) continue;
        auto& mine = held[rank];
        if (!mine.empty() && chance(50)) {
          const size_t i = random() % mine.size();
          ResultsMessage results;
          Trajectory t = Done(mine[i].first, mine[i].second, std::max<int64_t>(0, live_ - 1),
                              chance(10) ? Outcome::kAborted : Outcome::kCompleted);
          if (chance(20)) late.emplace_back(rank, t);
          results.trajectories.push_back(std::move(t));
          mine.erase(mine.begin() + static_cast<int64_t>(i));
          Say(rank, results);
        }
        if (chance(30)) Pull(rank, 6 - static_cast<int>(mine.size()));
      }
      if (!late.empty() && chance(20)) {
        ResultsMessage results;
        results.trajectories.push_back(late.back().second);
        Say(late.back().first, results);
        late.pop_back();
      }
      if (dead.size() < 3 && chance(1)) {
        const int rank = 2 + static_cast<int>(random() % 3);
        dead.insert(rank);
        coordinator_->Lose(rank, "killed", now_);
      }
      now_ += 100ms;
      for (int rank : workers_)
        if (!dead.count(rank)) Say(rank, BeatMessage{});
      Say(kTrainer, BeatMessage{});
      coordinator_->Tick(now_);
      for (const CollectReply& reply : Take<CollectReply>(kTrainer)) {
        waiting = false;
        for (const Trajectory& t : reply.trajectories) {
          ++outcomes[{t.group_id, t.sample_index}];
          if (t.outcome == Outcome::kCompleted) {
            EXPECT_LE(live_ - t.version_first(), 1);
          }
        }
      }
    }
    EXPECT_EQ(coordinator_->pending_groups(), 0) << "seed " << seed;
    EXPECT_EQ(submitted, 20u);
    for (const auto& [sample, count] : outcomes) EXPECT_EQ(count, 1) << "seed " << seed;
    std::set<uint64_t> groups;
    for (const auto& [sample, count] : outcomes) groups.insert(sample.first);
    EXPECT_EQ(groups.size(), 20u) << "seed " << seed;
    EXPECT_EQ(appended_.size(), outcomes.size());
  }
}

}  // namespace
}  // namespace rollcast
