#include "rollout/rollout_worker.h"

#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "tests/testing/byte_tokenizer.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/toy_model.h"

namespace rollcast {
namespace {

using namespace std::chrono_literals;
using testing::ByteTokenizer;
using testing::ExpectError;
using testing::ToyEngine;
using testing::ToyEngineConfig;

/// A scorer that waits at a gate which the test opens.
class GatedScorer final : public Scorer {
 public:
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    int scored = 0;
    size_t largest_batch = 0;

    void Open() {
      const std::lock_guard lock(mutex);
      open = true;
      changed.notify_all();
    }
  };
  explicit GatedScorer(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}

  std::vector<Score> ScoreBatch(std::span<const ScoreInput> inputs) override {
    std::unique_lock lock(gate_->mutex);
    gate_->changed.wait(lock, [&] { return gate_->open; });
    gate_->scored += static_cast<int>(inputs.size());
    gate_->largest_batch = std::max(gate_->largest_batch, inputs.size());
    return std::vector<Score>(inputs.size(), Score{0.5, ""});
  }

 private:
  std::shared_ptr<Gate> gate_;
};

class FunctionScorer final : public Scorer {
 public:
  explicit FunctionScorer(std::function<Score(const ScoreInput&)> f) : f_(std::move(f)) {}
  std::vector<Score> ScoreBatch(std::span<const ScoreInput> inputs) override {
    std::vector<Score> scores;
    for (const ScoreInput& input : inputs) scores.push_back(f_(input));
    return scores;
  }

 private:
  std::function<Score(const ScoreInput&)> f_;
};

GroupWork Work(uint64_t group_id, int samples, int max_tokens = 8) {
  GroupWork work;
  work.group_id = group_id;
  work.prompt_id = StrCat("p", group_id);
  work.prompt = {5, 6, static_cast<int32_t>(7 + group_id % 50)};
  work.group_size = samples;
  for (int i = 0; i < samples; ++i) work.samples.push_back(i);
  work.sampling.max_tokens = max_tokens;
  work.sampling.ignore_eos = true;
  work.sampling.seed = 3;
  return work;
}

// Takes results until there are `count` of them.
std::vector<WorkerResult> Await(RolloutWorker& worker, size_t count) {
  std::vector<WorkerResult> results;
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (results.size() < count) {
    if (!worker.WaitForResults(deadline)) {
      worker.ThrowIfFailed();
      ADD_FAILURE() << results.size() << " of " << count << " results";
      break;
    }
    for (WorkerResult& result : worker.TakeResults()) results.push_back(std::move(result));
  }
  return results;
}

TEST(RolloutWorkerTest, OneOutcomeASampleWithSeedsOfRunPromptAndSampleAlone) {
  ToyEngine toy(ToyEngineConfig());
  RolloutWorker worker(*toy.engine, nullptr,
                       std::make_unique<FunctionScorer>([](const ScoreInput& input) {
                         return Score{static_cast<double>(input.completion_ids.size()), ""};
                       }),
                       {.rank = 4});
  std::map<std::pair<uint64_t, int>, int> outcomes;
  for (uint64_t id = 1; id <= 5; ++id) worker.SubmitGroup(Work(id, 3));
  for (const WorkerResult& result : Await(worker, 15)) {
    const Trajectory& t = std::get<Trajectory>(result);
    ++outcomes[{t.group_id, t.sample_index}];
    EXPECT_EQ(t.outcome, Outcome::kCompleted);
    EXPECT_EQ(t.reward, 8);
    EXPECT_EQ(t.rank, 4);
    EXPECT_EQ(t.sampling.seed,
              CompletionSeed(3, PromptIdHash(t.prompt_id), static_cast<uint64_t>(t.sample_index)));
    EXPECT_EQ(t.completion.size(), 8u);
  }
  EXPECT_EQ(outcomes.size(), 15u);
  for (const auto& [sample, count] : outcomes) EXPECT_EQ(count, 1);
}

TEST(RolloutWorkerTest, OnlyTheNamedSamplesAreMade) {
  ToyEngine toy(ToyEngineConfig());
  RolloutWorker worker(*toy.engine, nullptr, nullptr, {});
  worker.SubmitGroup(Work(1, 4));
  std::map<int, std::vector<int32_t>> all;
  for (const WorkerResult& result : Await(worker, 4)) {
    const Trajectory& t = std::get<Trajectory>(result);
    all[t.sample_index] = t.completion;
  }
  GroupWork again = Work(1, 4);
  again.samples = {2};
  again.attempt = 1;
  worker.SubmitGroup(again);
  const auto results = Await(worker, 1);
  const Trajectory& t = std::get<Trajectory>(results.at(0));
  EXPECT_EQ(t.sample_index, 2);
  EXPECT_EQ(t.attempt, 1);
  EXPECT_EQ(t.completion, all[2]) << "same weights, same seed";
}

TEST(RolloutWorkerTest, ASlowScorerUsesUpTheRoomAndNeverHoldsTheEngine) {
  ToyEngine toy(ToyEngineConfig());
  auto gate = std::make_shared<GatedScorer::Gate>();
  RolloutWorker worker(*toy.engine, nullptr, std::make_unique<GatedScorer>(gate),
                       {.max_outstanding = 12, .score_batch = 4});
  EXPECT_EQ(worker.FreeRoom(), 12);
  for (uint64_t id = 1; id <= 3; ++id) worker.SubmitGroup(Work(id, 4));
  EXPECT_EQ(worker.FreeRoom(), 0) << "nothing more is to be asked for";
  // All 12 are decoded while the scorer stands still: it holds one batch, the rest waits.
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (toy.engine->stats().finished < 12 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(toy.engine->stats().finished, 12);
  EXPECT_EQ(worker.FreeRoom(), 0);
  EXPECT_FALSE(worker.WaitForResults(std::chrono::steady_clock::now()));
  gate->Open();
  EXPECT_EQ(Await(worker, 12).size(), 12u);
  EXPECT_EQ(worker.FreeRoom(), 12);
  EXPECT_EQ(gate->scored, 12);
  EXPECT_LE(gate->largest_batch, 4u);
}

TEST(RolloutWorkerTest, RefusalsComeOutWithTheirReasonAndAreNotScored) {
  ToyEngine toy(ToyEngineConfig());
  int scored = 0;
  RolloutWorker worker(*toy.engine, nullptr,
                       std::make_unique<FunctionScorer>([&](const ScoreInput&) {
                         ++scored;
                         return Score{1, ""};
                       }),
                       {});
  GroupWork empty = Work(1, 2);
  empty.prompt.clear();
  GroupWork outside = Work(2, 1);
  outside.prompt = {1, 5000};
  GroupWork text = Work(3, 1);
  text.prompt.clear();
  text.text = "words";
  GroupWork stops = Work(4, 1);
  stops.sampling.stop_strings = {"x"};
  for (const GroupWork& work : {empty, outside, text, stops}) worker.SubmitGroup(work);
  std::map<uint64_t, std::string> messages;
  for (const WorkerResult& result : Await(worker, 5)) {
    const Trajectory& t = std::get<Trajectory>(result);
    EXPECT_EQ(t.outcome, Outcome::kRefused);
    EXPECT_EQ(t.finish_reason, FinishReason::kNone);
    EXPECT_TRUE(std::isnan(t.reward));
    EXPECT_TRUE(t.completion.empty());
    messages[t.group_id] = t.message;
  }
  EXPECT_NE(messages[1], "");
  EXPECT_NE(messages[2].find("5000"), std::string::npos) << messages[2];
  EXPECT_NE(messages[3].find("no tokenizer"), std::string::npos);
  EXPECT_NE(messages[4].find("stop strings need a tokenizer"), std::string::npos);
  EXPECT_EQ(scored, 0);
  EXPECT_EQ(toy.engine->stats().pages_used, 0);
}

/// Encoding goes on until `poll` ends it.
class EndlessTokenizer final : public ByteTokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view, bool,
                              const std::function<void()>& poll) const override {
    begun_ = true;
    begun_.notify_all();
    while (true) poll();
  }
  void AwaitEncode() { begun_.wait(false); }

 private:
  mutable std::atomic<bool> begun_{false};
};

GroupWork TextWork(uint64_t group_id, int samples) {
  GroupWork work = Work(group_id, samples);
  work.prompt.clear();
  work.text = "a huge text";
  return work;
}

TEST(RolloutWorkerTest, AnAbortIsHeardWhileATextIsTurnedIntoIds) {
  ToyEngine toy(ToyEngineConfig());
  EndlessTokenizer tokenizer;
  RolloutWorker worker(*toy.engine, &tokenizer, nullptr, {});
  worker.SubmitGroup(TextWork(1, 2));
  tokenizer.AwaitEncode();
  worker.AbortGroup(2, "not this one");
  worker.SubmitGroup(TextWork(3, 1));
  worker.AbortAll("stopped by SIGINT");
  std::map<uint64_t, int> outcomes;
  for (const WorkerResult& result : Await(worker, 3)) {
    const Trajectory& t = std::get<Trajectory>(result);
    ++outcomes[t.group_id];
    EXPECT_EQ(t.outcome, Outcome::kAborted);
    EXPECT_EQ(t.finish_reason, FinishReason::kAbort);
    EXPECT_EQ(t.message, "stopped by SIGINT");
  }
  EXPECT_EQ(outcomes, (std::map<uint64_t, int>{{1, 2}, {3, 1}}));
}

TEST(RolloutWorkerTest, EndsWhileATextIsTurnedIntoIds) {
  ToyEngine toy(ToyEngineConfig());
  EndlessTokenizer tokenizer;
  {
    RolloutWorker worker(*toy.engine, &tokenizer, nullptr, {});
    worker.SubmitGroup(TextWork(1, 2));
    tokenizer.AwaitEncode();
    EXPECT_TRUE(worker.TakeResults().empty());
  }
  EXPECT_EQ(toy.engine->stats().waiting, 0) << "its prompt never came about";
}

// As one without an unknown token does.
class ReluctantTokenizer final : public ByteTokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text, bool special,
                              const std::function<void()>& poll) const override {
    if (text.find('e') != std::string_view::npos) throw Error("there is no token for \"e\"");
    return ByteTokenizer::Encode(text, special, poll);
  }
};

TEST(RolloutWorkerTest, ATextThatHasNoIdsIsRefused) {
  ToyEngine toy(ToyEngineConfig());
  const ReluctantTokenizer tokenizer;
  RolloutWorker worker(*toy.engine, &tokenizer, nullptr, {});
  worker.SubmitGroup(TextWork(1, 2));
  for (const WorkerResult& result : Await(worker, 2)) {
    const Trajectory& t = std::get<Trajectory>(result);
    EXPECT_EQ(t.outcome, Outcome::kRefused);
    EXPECT_EQ(t.message, "there is no token for \"e\"");
  }
  worker.SubmitGroup(Work(2, 1));
  EXPECT_EQ(std::get<Trajectory>(Await(worker, 1).at(0)).outcome, Outcome::kCompleted);
}

TEST(RolloutWorkerTest, OnlyATinyTemperatureBecomesGreedy) {
  ToyEngine toy(ToyEngineConfig());
  RolloutWorker worker(*toy.engine, nullptr, nullptr, {});
  const auto run = [&](float temperature) {
    GroupWork work = Work(1, 1);
    work.sampling.temperature = temperature;
    worker.SubmitGroup(work);
    return std::get<Trajectory>(Await(worker, 1).at(0));
  };
  const Trajectory greedy = run(1e-7f);
  EXPECT_EQ(greedy.outcome, Outcome::kCompleted);
  EXPECT_EQ(greedy.sampling.temperature, 0.0f);
  for (const float wrong : {-0.7f, -INFINITY, NAN}) {
    const Trajectory refused = run(wrong);
    EXPECT_EQ(refused.outcome, Outcome::kRefused) << wrong;
    EXPECT_TRUE(testing::Contains(refused.message, "temperature")) << refused.message;
  }
}

// It could not travel to the trainer.
TEST(RolloutWorkerTest, AResultLargerThanAMessageIsAnErrorThatSaysSo) {
  ToyEngine toy(ToyEngineConfig());
  const size_t row = 97 * sizeof(float);
  RolloutWorker worker(*toy.engine, nullptr, nullptr, {.max_result_bytes = 3 * row});
  worker.SubmitScore({.id = 1, .tokens = {5, 6, 7, 8}, .want_logits = true});
  EXPECT_EQ(std::get<ScoreResult>(Await(worker, 1).at(0)).error,
            "the logits of 4 tokens take 1552 bytes; at most 1164 are possible, which is 3 tokens");
  worker.SubmitScore({.id = 2, .tokens = {5, 6, 7}, .want_logits = true});
  EXPECT_EQ(std::get<ScoreResult>(Await(worker, 1).at(0)).logits.size(), 3u * 97);
  GroupWork work = Work(1, 1, 40);
  work.want_hidden = true;
  worker.SubmitGroup(work);
  const Trajectory t = std::get<Trajectory>(Await(worker, 1).at(0));
  EXPECT_EQ(t.outcome, Outcome::kFailed);
  EXPECT_TRUE(testing::Contains(t.message, "its hidden states take ")) << t.message;
  EXPECT_TRUE(t.hidden.empty());
  EXPECT_EQ(t.completion.size(), 40u);
}

// A full engine queue throttles: what does not fit waits its turn, and only a request that can
// never be served is refused.
TEST(RolloutWorkerTest, AShortEngineQueueThrottlesAndRefusesNothing) {
  EngineConfig config = ToyEngineConfig();
  config.max_queued = 1;
  ToyEngine toy(config);
  RolloutWorker worker(*toy.engine, nullptr, nullptr, {});
  for (uint64_t id = 1; id <= 10; ++id) worker.SubmitGroup(Work(id, 4));
  GroupWork bad = Work(11, 2);
  bad.prompt = {1000000};
  worker.SubmitGroup(bad);
  worker.SubmitScore({.id = 7, .tokens = {5, 6, 7}, .want_logits = false});
  std::map<Outcome, int> outcomes;
  int scores = 0;
  for (const WorkerResult& result : Await(worker, 43)) {
    if (const auto* t = std::get_if<Trajectory>(&result)) {
      ++outcomes[t->outcome];
    } else {
      EXPECT_EQ(std::get<ScoreResult>(result).error, "");
      ++scores;
    }
  }
  EXPECT_EQ(outcomes, (std::map<Outcome, int>{{Outcome::kCompleted, 40}, {Outcome::kRefused, 2}}));
  EXPECT_EQ(scores, 1);
}

TEST(RolloutWorkerTest, AnAbortReachesWhatWaitsForTheEngine) {
  EngineConfig config = ToyEngineConfig();
  config.max_queued = 1;
  ToyEngine toy(config);
  // Paused, the engine takes nothing from its queue, so all but one sample wait outside.
  toy.engine->Pause(std::chrono::steady_clock::now() + std::chrono::hours(1));
  RolloutWorker worker(*toy.engine, nullptr, nullptr, {});
  worker.SubmitGroup(Work(1, 1));
  worker.SubmitGroup(Work(2, 3));
  worker.AbortGroup(2, "not wanted");
  for (const WorkerResult& result : Await(worker, 3)) {
    const Trajectory& t = std::get<Trajectory>(result);
    EXPECT_EQ(t.group_id, 2u);
    EXPECT_EQ(t.outcome, Outcome::kAborted);
    EXPECT_EQ(t.finish_reason, FinishReason::kAbort);
    EXPECT_EQ(t.message, "not wanted");
  }
  toy.engine->Resume();
  EXPECT_EQ(std::get<Trajectory>(Await(worker, 1).at(0)).outcome, Outcome::kCompleted);
}

TEST(RolloutWorkerTest, AnAbortOfAllReachesEveryGroupAndNoScoreRequest) {
  EngineConfig config = ToyEngineConfig();
  config.max_queued = 2;
  ToyEngine toy(config);
  toy.engine->Pause(std::chrono::steady_clock::now() + std::chrono::hours(1));
  RolloutWorker worker(*toy.engine, nullptr, nullptr, {});
  for (uint64_t id = 1; id <= 3; ++id) worker.SubmitGroup(Work(id, 2));
  worker.SubmitScore({.id = 7, .tokens = {5, 6, 7}, .want_logits = false});
  worker.AbortAll("stopped by SIGINT");
  toy.engine->Resume();
  std::set<std::pair<uint64_t, int>> aborted;
  for (const WorkerResult& result : Await(worker, 7)) {
    if (const auto* score = std::get_if<ScoreResult>(&result)) {
      EXPECT_EQ(score->error, "");
      continue;
    }
    const Trajectory& t = std::get<Trajectory>(result);
    EXPECT_EQ(t.outcome, Outcome::kAborted);
    EXPECT_EQ(t.message, "stopped by SIGINT");
    aborted.emplace(t.group_id, t.sample_index);
  }
  EXPECT_EQ(aborted.size(), 6u);
  worker.SubmitGroup(Work(9, 1));
  EXPECT_EQ(std::get<Trajectory>(Await(worker, 1).at(0)).outcome, Outcome::kCompleted)
      << "what comes later is no part of it";
}

TEST(RolloutWorkerTest, AnAbortedGroupIsNeverScored) {
  ToyEngine toy(ToyEngineConfig());
  std::atomic<int> scored{0};
  RolloutWorker worker(*toy.engine, nullptr,
                       std::make_unique<FunctionScorer>([&](const ScoreInput&) {
                         ++scored;
                         return Score{1, ""};
                       }),
                       {});
  toy.engine->Pause(std::chrono::steady_clock::now() + 60s);
  worker.SubmitGroup(Work(1, 3, 100));
  worker.AbortGroup(1, "the trainer has moved on");
  toy.engine->Resume();
  std::set<int> samples;
  for (const WorkerResult& result : Await(worker, 3)) {
    const Trajectory& t = std::get<Trajectory>(result);
    samples.insert(t.sample_index);
    EXPECT_EQ(t.outcome, Outcome::kAborted);
    EXPECT_EQ(t.finish_reason, FinishReason::kAbort);
    EXPECT_EQ(t.message, "the trainer has moved on");
    EXPECT_TRUE(std::isnan(t.reward));
  }
  EXPECT_EQ(samples.size(), 3u);
  EXPECT_EQ(scored, 0);
}

TEST(RolloutWorkerTest, AStopStringEndsTheCompletionAndIsCutFromTheText) {
  const ByteTokenizer tokenizer;
  ToyEngine toy(ToyEngineConfig());
  std::string seen;
  RolloutWorker worker(*toy.engine, &tokenizer,
                       std::make_unique<FunctionScorer>([&](const ScoreInput& input) {
                         seen = input.completion;
                         return Score{1, ""};
                       }),
                       {});
  worker.SubmitGroup(Work(1, 1, 40));
  const auto whole = Await(worker, 1);
  const Trajectory& free = std::get<Trajectory>(whole.at(0));
  ASSERT_EQ(free.completion.size(), 40u);
  // What it writes at tokens 10 and 11 is the stop string of the second run.
  const std::string stop = tokenizer.Decode(std::span(free.completion).subspan(10, 2), true);
  GroupWork work = Work(1, 1, 40);
  work.sampling.stop_strings = {stop};
  worker.SubmitGroup(work);
  const auto stopped = Await(worker, 1);
  const Trajectory& t = std::get<Trajectory>(stopped.at(0));
  EXPECT_EQ(t.finish_reason, FinishReason::kStopString);
  EXPECT_LE(t.completion.size(), 12u);
  EXPECT_EQ(t.text.find(stop), std::string::npos);
  EXPECT_EQ(t.text + stop, tokenizer.Decode(t.completion, true));
  EXPECT_EQ(seen, t.text);
  // With min_tokens beyond the match it goes on.
  work.sampling.min_tokens = 40;
  worker.SubmitGroup(work);
  const auto later = Await(worker, 1);
  EXPECT_EQ(std::get<Trajectory>(later.at(0)).completion.size(), 40u);
}

TEST(RolloutWorkerTest, AScorerThatThrowsEndsTheWorkerWithItsWords) {
  ToyEngine toy(ToyEngineConfig());
  RolloutWorker worker(*toy.engine, nullptr,
                       std::make_unique<FunctionScorer>(
                           [](const ScoreInput&) -> Score { throw Error("no more paper"); }),
                       {});
  worker.SubmitGroup(Work(1, 1));
  EXPECT_FALSE(worker.WaitForResults(std::chrono::steady_clock::now() + 60s));
  ExpectError([&] { worker.ThrowIfFailed(); }, {"no more paper"});
}

TEST(RolloutWorkerTest, EndsInTheMiddleOfWork) {
  ToyEngine toy(ToyEngineConfig());
  auto gate = std::make_shared<GatedScorer::Gate>();
  gate->Open();
  {
    RolloutWorker worker(*toy.engine, nullptr, std::make_unique<GatedScorer>(gate), {});
    for (uint64_t id = 1; id <= 20; ++id) worker.SubmitGroup(Work(id, 4, 100));
    Await(worker, 3);
  }
  const EngineStats stats = toy.engine->stats();
  EXPECT_GT(stats.running + stats.waiting, 0) << "it has ended before all was done";
  EXPECT_LT(gate->scored, 80);
}

}  // namespace
}  // namespace rollcast
