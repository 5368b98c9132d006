// Whole jobs of a trainer client and rollout ranks, as threads over real engines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "tests/testing/expect_error.h"
#include "tests/testing/toy_job.h"

namespace rollcast {
namespace {

using namespace std::chrono_literals;
using testing::Contains;
using testing::ExpectError;
using testing::Fault;
using testing::ToyJob;
using testing::ToyPrompts;

SamplingParams Sampling(int max_tokens = 12) {
  SamplingParams sampling;
  sampling.max_tokens = max_tokens;
  sampling.ignore_eos = true;
  sampling.seed = 5;
  return sampling;
}

UpdateOptions Update(UpdateMode mode, InFlightPolicy policy = InFlightPolicy::kKeep) {
  UpdateOptions options;
  options.mode = mode;
  options.in_flight = policy;
  return options;
}

/// Without hidden states, and with a timeout that no healthy job needs.
std::vector<Trajectory> Rollout(ToyJob& job, const std::vector<PromptGroup>& prompts,
                                int group_size) {
  return job.client().Rollout(prompts, group_size, Sampling(), false, 60s);
}

/// `workers` ranks, of which a killed one is found out soon.
ToyJob::Options Watchful(int workers) {
  ToyJob::Options options;
  options.workers = workers;
  options.heartbeat_s = 0.05;
  options.silence_s = 1;
  return options;
}

/// With work to do, of which nothing has been collected.
void StartWork(ToyJob& job) {
  job.client().WaitUntilStarted();
  job.client().Submit(ToyPrompts(4), 4, Sampling(), false);
}

void ExpectEnd(ToyJob& job, std::initializer_list<int> ranks, const std::string& why) {
  for (const int rank : ranks) {
    const std::string end = job.Join(rank);
    EXPECT_TRUE(Contains(end, why)) << rank << ": " << end;
  }
}

// What must be the same wherever a completion was made.
std::string Fingerprint(const Trajectory& t) {
  std::string text = StrCat(t.prompt_id, "/", t.sample_index, " seed ", t.sampling.seed, ":");
  for (size_t i = 0; i < t.completion.size(); ++i)
    text += StrCat(" ", t.completion[i], " ", std::bit_cast<uint32_t>(t.logprob[i]));
  return text;
}

TEST(JobTest, EveryCompletionComesBackScoredInOrder) {
  ToyJob job({});
  job.client().WaitUntilStarted();
  const auto prompts = ToyPrompts(7);
  const auto trajectories = job.client().Rollout(prompts, 4, Sampling(), true, 60s);
  ASSERT_EQ(trajectories.size(), 28u);
  std::set<int> ranks;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    const Trajectory& t = trajectories[i];
    EXPECT_EQ(t.prompt_id, prompts[i / 4].prompt_id);
    EXPECT_EQ(t.prompt, prompts[i / 4].tokens);
    EXPECT_EQ(t.sample_index, static_cast<int>(i % 4));
    EXPECT_EQ(t.group_size, 4);
    EXPECT_EQ(t.outcome, Outcome::kCompleted) << t.message;
    EXPECT_EQ(t.finish_reason, FinishReason::kLength);
    EXPECT_EQ(t.completion.size(), 12u);
    EXPECT_EQ(t.logprob.size(), 12u);
    EXPECT_FALSE(t.hidden.empty());
    EXPECT_EQ(t.hidden.size() % 12, 0u);
    EXPECT_EQ(t.reward, 12);
    EXPECT_EQ(t.spans, (std::vector<PolicySpan>{{0, 12, 0}}));
    EXPECT_EQ(t.sampling.seed, CompletionSeed(5, PromptIdHash(t.prompt_id), i % 4));
    ranks.insert(t.rank);
  }
  EXPECT_EQ(ranks, (std::set<int>{1, 2})) << "both ranks asked for work";
  EXPECT_EQ(job.appended().size(), 28u);
  EXPECT_FALSE(job.closed());
  job.client().Finish(60s);
  EXPECT_TRUE(job.closed()) << "Finish returns when the file is complete";
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(job.Join(rank), "");
  ExpectError([&] { job.client().Collect(1, 1s); }, {"the job has been finished"});
}

TEST(JobTest, TheNumberOfRanksDoesNotChangeABit) {
  std::vector<std::string> reference;
  for (int workers : {1, 2, 3}) {
    ToyJob::Options options;
    options.workers = workers;
    ToyJob job(options);
    std::vector<std::string> prints;
    for (const Trajectory& t : Rollout(job, ToyPrompts(6), 3)) prints.push_back(Fingerprint(t));
    if (reference.empty()) reference = prints;
    EXPECT_EQ(prints, reference) << workers << " ranks";
    job.client().Finish(60s);
  }
}

TEST(JobTest, ScoresAreThoseOfDecodingBitForBit) {
  ToyJob job({});
  const auto trajectories = Rollout(job, ToyPrompts(1), 2);
  for (const Trajectory& t : trajectories) {
    std::vector<int32_t> tokens = t.prompt;
    tokens.insert(tokens.end(), t.completion.begin(), t.completion.end());
    const ScoreResult result = job.client().Score(tokens, false, 60s);
    ASSERT_EQ(result.error, "");
    ASSERT_EQ(result.logprob_raw.size(), tokens.size() - 1);
    for (size_t i = 0; i < t.completion.size(); ++i)
      EXPECT_EQ(result.logprob_raw[t.prompt.size() - 1 + i], t.logprob_raw[i]);
  }
  EXPECT_NE(job.client().Score({1, 99999}, false, 60s).error, "");
}

class JobModeTest : public ::testing::TestWithParam<UpdateMode> {};

TEST_P(JobModeTest, UpdatesReachAllRanksAndNewRolloutsShowThem) {
  ToyJob job({});
  const auto before = Rollout(job, ToyPrompts(2), 4);
  const SyncReport report = job.client().Publish(Update(GetParam()), job.Weights(2));
  EXPECT_TRUE(report.committed) << report.error;
  EXPECT_EQ(report.version, 1);
  EXPECT_EQ(job.client().LiveVersion(), 1);
  const auto after = Rollout(job, ToyPrompts(2), 4);
  bool differs = false;
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].spans, (std::vector<PolicySpan>{{0, 12, 1}}));
    EXPECT_EQ(after[i].live_version_at_return, 1);
    differs |= after[i].completion != before[i].completion;
  }
  EXPECT_TRUE(differs) << "other weights, the same text";
  // Back to the first weights: the same seeds give the same bits again.
  EXPECT_TRUE(job.client().Publish(Update(GetParam()), job.Weights(1)).committed);
  const auto again = Rollout(job, ToyPrompts(2), 4);
  for (size_t i = 0; i < again.size(); ++i)
    EXPECT_EQ(Fingerprint(again[i]), Fingerprint(before[i]));
  job.client().Finish(60s);
  EXPECT_EQ(job.updates().size(), 2u);
}

TEST_P(JobModeTest, ExactlyOneOutcomeWhileUpdatesOverlapDecoding) {
  for (const InFlightPolicy policy : {InFlightPolicy::kKeep, InFlightPolicy::kRecompute,
                                      InFlightPolicy::kDrain, InFlightPolicy::kAbort}) {
    ToyJob::Options options;
    options.max_policy_lag = 1;
    ToyJob job(options);
    job.client().WaitUntilStarted();
    std::set<uint64_t> submitted;
    std::map<std::pair<uint64_t, int>, int> outcomes;
    for (int round = 0; round < 6; ++round) {
      for (uint64_t id : job.client().Submit(ToyPrompts(5, 5 * round), 3, Sampling(40), false))
        submitted.insert(id);
      const SyncReport report =
          job.client().Publish(Update(GetParam(), policy), job.Weights(2 + round % 2));
      ASSERT_TRUE(report.committed) << report.error;
      for (const Trajectory& t : job.client().Collect(round == 5 ? 1000 : 4, 60s).trajectories) {
        ++outcomes[{t.group_id, t.sample_index}];
        if (t.outcome == Outcome::kCompleted) {
          EXPECT_LE(t.live_version_at_return - t.version_first(), 1);
          EXPECT_EQ(t.completion.size(), 40u);
        } else {
          EXPECT_TRUE(t.outcome == Outcome::kAborted || t.outcome == Outcome::kOverLag)
              << Name(t.outcome) << " " << t.message;
          EXPECT_NE(t.message, "");
        }
        EXPECT_EQ(std::isfinite(t.reward),
                  t.outcome == Outcome::kCompleted || t.outcome == Outcome::kOverLag);
        EXPECT_EQ(t.live_version_at_return, job.client().LiveVersion());
      }
    }
    EXPECT_EQ(outcomes.size(), submitted.size() * 3) << Name(policy);
    for (const auto& [sample, count] : outcomes) EXPECT_EQ(count, 1) << Name(policy);
    EXPECT_EQ(job.appended().size(), outcomes.size());
    job.client().Finish(60s);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, JobModeTest,
                         ::testing::Values(UpdateMode::kStaged, UpdateMode::kInPlace),
                         [](const auto& info) {
                           return info.param == UpdateMode::kStaged ? "staged" : "in_place";
                         });

TEST(JobTest, ARefusedPromptIsAnOutcomeAndDoesNotHoldUpTheRest) {
  ToyJob job({});
  auto prompts = ToyPrompts(3);
  prompts[1].tokens = {5, 99999};
  prompts[2].tokens.clear();
  prompts[2].text = "words";
  const auto trajectories = Rollout(job, prompts, 2);
  ASSERT_EQ(trajectories.size(), 6u);
  for (int i : {0, 1}) EXPECT_EQ(trajectories[static_cast<size_t>(i)].outcome, Outcome::kCompleted);
  for (int i : {2, 3, 4, 5}) {
    const Trajectory& t = trajectories[static_cast<size_t>(i)];
    EXPECT_EQ(t.outcome, Outcome::kRefused);
    EXPECT_EQ(t.finish_reason, FinishReason::kNone);
    EXPECT_TRUE(std::isnan(t.reward));
  }
  EXPECT_TRUE(Contains(trajectories[2].message, "99999")) << trajectories[2].message;
  EXPECT_TRUE(Contains(trajectories[4].message, "no tokenizer")) << trajectories[4].message;
  job.client().Finish(60s);
}

TEST(JobTest, BadRewardsAreNeverGoodOnes) {
  ToyJob::Options options;
  options.score = [](const ScoreInput& input) -> Score {
    if (input.prompt_id == "p0") return {std::nan(""), ""};
    if (input.prompt_id == "p1") return {1, "no answer within 1 s"};
    return {INFINITY, ""};
  };
  ToyJob job(options);
  for (const Trajectory& t : Rollout(job, ToyPrompts(3), 2)) {
    EXPECT_EQ(t.outcome, Outcome::kScoringFailed);
    EXPECT_TRUE(std::isnan(t.reward));
    EXPECT_NE(t.message, "");
    EXPECT_EQ(t.completion.size(), 12u) << "what was generated is kept";
  }
  job.client().Finish(60s);
}

TEST(JobTest, AWrongTensorIsTheCallersErrorAndTheJobGoesOn) {
  ToyJob job({});
  auto tensors = job.Weights(2);
  tensors.front().name = "model.no_such_tensor";
  ExpectError([&] { job.client().Publish(Update(UpdateMode::kStaged), tensors); },
              {"model.no_such_tensor"});
  EXPECT_EQ(Rollout(job, ToyPrompts(1), 2).size(), 2u);
  EXPECT_EQ(job.client().LiveVersion(), 0);
  job.client().Finish(60s);
}

TEST(JobTest, AKilledWorkersSamplesAreMadeByTheOthersWithTheSameBits) {
  std::vector<std::string> reference;
  for (const bool kill : {false, true}) {
    ToyJob::Options options = Watchful(3);
    if (!kill) options.silence_s = 20;
    ToyJob job(options);
    job.client().WaitUntilStarted();
    const auto ids = job.client().Submit(ToyPrompts(12), 4, Sampling(100), false);
    if (kill) job.Kill(3);
    Collected collected = job.client().Collect(static_cast<int>(ids.size()), 60s);
    ASSERT_EQ(collected.groups, 12);
    std::vector<std::string> prints;
    for (const Trajectory& t : collected.trajectories) {
      EXPECT_EQ(t.outcome, Outcome::kCompleted);
      prints.push_back(Fingerprint(t));
    }
    std::sort(prints.begin(), prints.end());
    if (!kill) reference = prints;
    EXPECT_EQ(prints, reference);
    if (kill) {
      EXPECT_EQ(job.client().LostRanks(), (std::vector<int>{3}));
      EXPECT_EQ(job.client().Stats(60s).workers.size(), 2u);
      // Updates go on with those who are left.
      const SyncReport report = job.client().Publish(Update(UpdateMode::kStaged), job.Weights(2));
      EXPECT_TRUE(report.committed) << report.error;
    }
    job.client().Finish(60s);
  }
}

TEST(JobTest, AKilledTrainerEndsEveryRankWithAStatedError) {
  ToyJob job(Watchful(2));
  StartWork(job);
  job.Kill(0);
  ExpectEnd(job, {1, 2}, "the trainer (rank 0) is lost");
}

TEST(JobTest, AKilledCoordinatorEndsEveryRankWithAStatedError) {
  ToyJob job(Watchful(3));
  StartWork(job);
  job.Kill(1);
  ExpectError([&] { job.client().Collect(4, 60s); }, {"coordinator (rank 1) is lost"});
  ExpectEnd(job, {0, 2, 3}, "coordinator (rank 1) is lost");
}

TEST(JobTest, AnUpdateEndsWithTheCoordinatorAndNamesIt) {
  ToyJob job(Watchful(3));
  job.client().WaitUntilStarted();
  job.Kill(1);
  UpdateOptions update;
  update.deadline = 600s;
  ExpectError([&] { job.client().Publish(update, job.Weights(2)); },
              {"coordinator (rank 1) is lost"});
  ExpectEnd(job, {0, 2, 3}, "coordinator (rank 1) is lost");
}

TEST(JobTest, AJobThatEndsDuringAnUpdateSaysWhyInEveryCall) {
  ToyJob::Options options = Watchful(2);
  options.silence_s = 20;
  std::atomic<bool> broken{false};
  options.score = [&](const ScoreInput&) -> Score {
    while (!broken) std::this_thread::sleep_for(1ms);
    throw std::runtime_error("the scorer broke");
  };
  ToyJob job(options);
  job.client().WaitUntilStarted();
  job.client().Submit(ToyPrompts(4), 1, Sampling(), false);
  // The update waits for the vote of a rank that is gone, while the coordinator's scorer breaks.
  job.Kill(2);
  std::thread breaks([&] {
    std::this_thread::sleep_for(300ms);
    broken = true;
  });
  UpdateOptions update;
  update.deadline = 600s;
  ExpectError([&] { job.client().Publish(update, job.Weights(2)); }, {"the scorer broke"});
  for (int i = 0; i < 2; ++i) ExpectError([&] { job.client().Stats(60s); }, {"the scorer broke"});
  breaks.join();
}

TEST(JobTest, ACallDoesNotWaitForItsTurnForEver) {
  ToyJob::Options options;
  options.silence_s = 1;
  options.heartbeat_s = 0.05;
  std::atomic<bool> hold{true};
  options.score = [&](const ScoreInput&) -> Score {
    while (hold) std::this_thread::sleep_for(1ms);
    return {1, ""};
  };
  ToyJob job(options);
  job.client().WaitUntilStarted();
  job.client().Submit(ToyPrompts(1), 1, Sampling(), false);
  std::thread collects([&] { EXPECT_EQ(job.client().Collect(1, 60s).groups, 1); });
  // A call that is answered came before the other thread's.
  std::string error;
  const auto limit = std::chrono::steady_clock::now() + 60s;
  while (error.find("another call") == std::string::npos &&
         std::chrono::steady_clock::now() < limit) {
    try {
      job.client().Stats(100ms);
    } catch (const Error& e) {
      error = e.what();
    }
  }
  EXPECT_NE(error.find("another call of the trainer has not ended within 1.1 s"), std::string::npos)
      << error;
  hold = false;
  collects.join();
  EXPECT_EQ(job.client().Stats(60s).returned, 1);
}

TEST(JobTest, ARankWhoseScorerBreaksSaysSoAndIsReplaced) {
  ToyJob::Options options;
  options.break_scorer = 2;
  options.workers = 3;
  ToyJob job(options);
  job.client().WaitUntilStarted();
  for (const Trajectory& t : Rollout(job, ToyPrompts(9), 2)) {
    EXPECT_EQ(t.outcome, Outcome::kCompleted) << t.message;
    EXPECT_NE(t.rank, 2);
  }
  EXPECT_EQ(job.client().LostRanks(), std::vector<int>{2});
  EXPECT_EQ(job.Join(2), "the scorer broke");
  job.client().Finish(60s);
}

TEST(JobTest, ACoordinatorWhoseScorerBreaksEndsTheJobWithThat) {
  ToyJob::Options options;
  options.break_scorer = 1;
  ToyJob job(options);
  job.client().WaitUntilStarted();
  ExpectError([&] { Rollout(job, ToyPrompts(9), 2); }, {"the scorer broke"});
}

TEST(JobTest, CollectGivesWhatThereIsAtItsTimeout) {
  ToyJob::Options options;
  std::atomic<bool> hold{true};
  options.score = [&](const ScoreInput& input) -> Score {
    while (hold && input.prompt_id == "p1") std::this_thread::sleep_for(1ms);
    return {1, ""};
  };
  options.workers = 2;
  ToyJob job(options);
  job.client().WaitUntilStarted();
  job.client().Submit(ToyPrompts(2), 2, Sampling(), false);
  const Collected first = job.client().Collect(2, 500ms);
  EXPECT_EQ(first.groups + first.pending_groups, 2);
  EXPECT_GE(first.pending_groups, 1);
  hold = false;
  const Collected second = job.client().Collect(2, 60s);
  EXPECT_EQ(second.groups, first.pending_groups);
  EXPECT_EQ(second.pending_groups, 0);
  job.client().Finish(60s);
}

TEST(JobTest, WhatALateRolloutHasLeftCanBeCancelled) {
  ToyJob job({});
  TrainerClient& client = job.client();
  client.WaitUntilStarted();
  ExpectError([&] { client.Rollout(ToyPrompts(8), 32, Sampling(100), false, 1ms); },
              {"rollout: ",
               " of 8 groups within 0.001 s; those are in the trajectory file alone, the "
               "other ",
               " go on: collect or cancel them"});
  ExpectError([&] { Rollout(job, ToyPrompts(1), 1); },
              {" groups of earlier submissions are pending; collect or cancel them first"});
  const size_t before = job.appended().size();
  const Collected cancelled = client.Cancel(60s);
  EXPECT_EQ(cancelled.pending_groups, 0);
  EXPECT_EQ(cancelled.trajectories.size(), 8 * 32 - before);
  int aborted = 0;
  for (const Trajectory& t : cancelled.trajectories) {
    if (t.outcome == Outcome::kCompleted) continue;
    ++aborted;
    EXPECT_EQ(t.outcome, Outcome::kAborted);
    EXPECT_EQ(t.message, "cancelled by the trainer");
    EXPECT_LT(t.completion.size(), 100u);
  }
  EXPECT_GT(aborted, 0);
  EXPECT_EQ(job.appended().size(), 8u * 32);
  EXPECT_EQ(client.Cancel(60s).groups, 0) << "nothing is pending";
  for (const Trajectory& t : Rollout(job, ToyPrompts(2), 3))
    EXPECT_EQ(t.outcome, Outcome::kCompleted) << t.message;
  client.Finish(60s);
}

TEST(JobTest, AFailedTrainerTellsAllRanksWhy) {
  ToyJob job({});
  job.client().WaitUntilStarted();
  job.client().Fail("the loss is not a number");
  ExpectEnd(job, {0, 1, 2}, "the loss is not a number");
  // Whatever a call is given.
  ExpectError([&] { job.client().Stats(-1s); }, {"the loss is not a number"});
  ExpectError([&] { job.client().Submit(ToyPrompts(1), 0, Sampling(), false); },
              {"the loss is not a number"});
  ExpectError([&] { job.client().CheckRunning(); }, {"the loss is not a number"});
}

TEST(JobTest, ALostJobSaysSoThoughGroupsArePending) {
  ToyJob job(Watchful(2));
  StartWork(job);
  job.Kill(1);
  ExpectEnd(job, {0}, "coordinator (rank 1) is lost");
  ExpectError([&] { Rollout(job, ToyPrompts(1), 1); }, {"coordinator (rank 1) is lost"});
}

TEST(JobTest, AGroupTooLargeIsAnErrorAndTheJobGoesOn) {
  ToyJob job({});
  TrainerClient& client = job.client();
  client.WaitUntilStarted();
  for (const int size :
       {0, -1, kMaxGroupSize + 1, 1'000'000'000, std::numeric_limits<int>::max()}) {
    const std::string text = StrCat("group size ", size, ": must be at least 1 and at most 4096");
    ExpectError([&] { client.Submit(ToyPrompts(1), size, Sampling(), false); }, {text});
    ExpectError([&] { client.Rollout(ToyPrompts(1), size, Sampling(), false, 60s); }, {text});
  }
  EXPECT_EQ(client.Rollout(ToyPrompts(1), 2, Sampling(), false, 60s).size(), 2u);
  client.Finish(60s);
}

TEST(JobTest, ADurationThatIsNoneIsAnErrorAndTheJobGoesOn) {
  using Seconds = std::chrono::duration<double>;
  ToyJob job({});
  TrainerClient& client = job.client();
  client.WaitUntilStarted();
  for (const double s : {std::nan(""), -1.0, HUGE_VAL, -HUGE_VAL, 2e9, 0.0}) {
    const Seconds wrong(s);
    const std::string text = StrCat("is ", s, " s: must be above 0 and at most 1e+09 s");
    ExpectError([&] { client.Rollout(ToyPrompts(1), 2, Sampling(), false, wrong); },
                {"the timeout of Rollout", text});
    ExpectError([&] { client.Score({1, 2}, false, wrong); }, {"the timeout of Score", text});
    ExpectError([&] { client.Manifest(wrong); }, {"the timeout of Manifest", text});
    ExpectError([&] { client.Stats(wrong); }, {"the timeout of Stats", text});
    ExpectError([&] { client.Finish(wrong); }, {"the timeout of Finish", text});
    ExpectError([&] { client.Cancel(wrong); }, {"the timeout of Cancel", text});
    if (s != 0) ExpectError([&] { client.Collect(1, wrong); }, {"the timeout of Collect is "});
    UpdateOptions update = Update(UpdateMode::kStaged);
    update.deadline = wrong;
    ExpectError([&] { client.Publish(update, job.Weights(2)); },
                {"the deadline of an update", text});
    update = Update(UpdateMode::kStaged);
    update.drain_limit = wrong;
    ExpectError([&] { client.Publish(update, job.Weights(2)); },
                {"the drain limit of an update", text});
  }
  EXPECT_EQ(client.LiveVersion(), 0);
  EXPECT_EQ(client.Collect(1, Seconds(0)).groups, 0);
  EXPECT_EQ(client.Rollout(ToyPrompts(1), 2, Sampling(), false, Seconds(1e9)).size(), 2u);
  client.Finish(60s);
}

}  // namespace
}  // namespace rollcast
