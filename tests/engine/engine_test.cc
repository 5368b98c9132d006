#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "tests/testing/expect_error.h"
#include "tests/testing/toy_model.h"

namespace rollcast {
namespace {

using testing::ExpectError;
using testing::RunAll;
using testing::ToyEngine;
using testing::ToyEngineConfig;
using testing::ToyRequest;
using testing::UpdateWeights;

/// Requests that differ in length, sampling and seed.
std::vector<Request> MixedRequests() {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    Request r = ToyRequest(100 + i, 1 + (i * 7) % 40, 6 + (i * 5) % 23);
    if (i % 4 == 1) r.sampling.temperature = 0;
    if (i % 4 == 2) {
      r.sampling.temperature = 0.7f;
      r.sampling.top_k = 20;
      r.sampling.top_p = 0.9f;
    }
    if (i % 4 == 3) {
      r.sampling.min_p = 0.02f;
      r.sampling.repetition_penalty = 1.3f;
      r.sampling.frequency_penalty = 0.2f;
      r.sampling.presence_penalty = 0.1f;
    }
    if (i == 5) r.sampling.ignore_eos = false;
    requests.push_back(std::move(r));
  }
  return requests;
}

/// Six completions of one prompt, twice.
std::vector<Request> Groups() {
  std::vector<Request> requests;
  for (int group = 1; group <= 2; ++group)
    for (int i = 0; i < 6; ++i) {
      Request r = ToyRequest(group * 100 + i, 13 + 8 * group, 20, group);
      r.group_id = group;
      r.prompt = ToyRequest(0, 13 + 8 * group, 1, group).prompt;
      requests.push_back(std::move(r));
    }
  return requests;
}

void ExpectSameBits(const std::vector<Completion>& expected, const std::vector<Completion>& actual,
                    const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(expected[i].output, actual[i].output) << what << ", request " << expected[i].id;
    EXPECT_EQ(expected[i].logprob, actual[i].logprob) << what << ", request " << expected[i].id;
    EXPECT_EQ(expected[i].logprob_raw, actual[i].logprob_raw)
        << what << ", request " << expected[i].id;
    EXPECT_EQ(expected[i].logprob_filtered, actual[i].logprob_filtered)
        << what << ", request " << expected[i].id;
    EXPECT_EQ(expected[i].state, actual[i].state) << what << ", request " << expected[i].id;
  }
}

/// Each request alone in a fresh engine, the plainest way there is.
std::vector<Completion> Alone(const std::vector<Request>& requests) {
  EngineConfig config = ToyEngineConfig();
  config.capture = false;
  config.run_ahead = 0;
  config.prefix_cache = false;
  config.max_batched_tokens = 256;
  std::vector<Completion> completions;
  for (Request request : requests) {
    ToyEngine toy(config);
    request.group_id = 0;
    completions.push_back(RunAll(*toy.engine, {request})[0]);
  }
  return completions;
}

class BitContract : public ::testing::Test {
 protected:
  void Check(const EngineConfig& config, const std::string& what, int threads = 1) {
    for (const auto& requests : {MixedRequests(), Groups()}) {
      const std::vector<Completion> expected = Alone(requests);
      ToyEngine toy(config, 1, threads);
      ExpectSameBits(expected, RunAll(*toy.engine, requests), what);
      std::vector<Request> again =
          requests;  // the second time over prefix-cache hits, where there is one
      for (Request& r : again) {
        r.id += 1000;
        r.group_id = r.group_id == 0 ? 0 : r.group_id + 1000;
      }
      ExpectSameBits(expected, RunAll(*toy.engine, again), what + ", again");
      stats_ = toy.engine->stats();
    }
  }
  EngineStats stats_;
};

TEST_F(BitContract, AnyBatch) { Check(ToyEngineConfig(), "one batch"); }

TEST_F(BitContract, EagerOrCaptured) {
  for (bool capture : {false, true})
    for (int run_ahead : {0, 1}) {
      EngineConfig config = ToyEngineConfig();
      config.capture = capture;
      config.run_ahead = run_ahead;
      Check(config, StrCat("capture ", capture, " run_ahead ", run_ahead));
      EXPECT_EQ(stats_.graph_replays > 0, capture);
    }
}

TEST_F(BitContract, AnyChunkSize) {
  for (int chunk : {4, 5, 17}) {
    EngineConfig config = ToyEngineConfig();
    config.max_running = 4;
    config.max_batched_tokens = chunk;
    Check(config, StrCat("chunk ", chunk));
  }
}

TEST_F(BitContract, AnyPageSizeWithAndWithoutPrefixCache) {
  for (int page_size : {1, 4, 16})
    for (bool prefix_cache : {false, true}) {
      EngineConfig config = ToyEngineConfig();
      config.page_size = page_size;
      config.num_pages = 2048 / page_size;
      config.prefix_cache = prefix_cache;
      Check(config, StrCat("page_size ", page_size, " prefix_cache ", prefix_cache));
      EXPECT_GT(stats_.cached_tokens, 0);  // group siblings share in either case
    }
}

TEST_F(BitContract, AfterPreemption) {
  for (int run_ahead : {0, 1}) {
    EngineConfig config = ToyEngineConfig();
    config.run_ahead = run_ahead;
    config.num_pages = 12;  // 96 tokens for all
    Check(config, StrCat("few pages, run_ahead ", run_ahead));
    EXPECT_GT(stats_.preemptions, 0);
  }
}

TEST_F(BitContract, AnyNumberOfThreads) {
  for (int threads : {2, 3}) Check(ToyEngineConfig(), StrCat(threads, " threads"), threads);
}

TEST_F(BitContract, ScoringGivesTheDecodedLogProbabilities) {
  ToyEngine toy(ToyEngineConfig());
  const std::vector<Request> requests = MixedRequests();
  const std::vector<Completion> decoded = RunAll(*toy.engine, requests);
  std::vector<Request> score;
  for (size_t i = 0; i < requests.size(); ++i) {
    Request r;
    r.id = requests[i].id;
    r.prompt = requests[i].prompt;
    r.prompt.insert(r.prompt.end(), decoded[i].output.begin(), decoded[i].output.end());
    r.sampling.temperature = requests[i].sampling.temperature;
    r.score_only = true;
    score.push_back(std::move(r));
  }
  const std::vector<Completion> scored = RunAll(*toy.engine, score);
  for (size_t i = 0; i < requests.size(); ++i) {
    const size_t prompt = requests[i].prompt.size();
    ASSERT_EQ(scored[i].state, CompletionState::kScored);
    ASSERT_EQ(scored[i].logprob_raw.size(), score[i].prompt.size() - 1);
    const auto tail = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin() + (prompt - 1), all.end());
    };
    EXPECT_EQ(tail(scored[i].logprob_raw), decoded[i].logprob_raw) << "request " << i;
    EXPECT_EQ(tail(scored[i].logprob), decoded[i].logprob) << "request " << i;
  }
}

TEST_F(BitContract, HoldsAcrossAWeightUpdate) {
  // Version 1 in an engine that has served version 0 must give what a fresh engine with those
  // weights gives.
  for (bool capture : {false, true}) {
    EngineConfig config = ToyEngineConfig();
    config.capture = capture;
    ToyEngine old(config, 1), fresh(config, 2);
    RunAll(*old.engine, MixedRequests());
    UpdateWeights(old, 1, 2, InFlightPolicy::kKeep);
    ExpectSameBits(RunAll(*fresh.engine, MixedRequests()), RunAll(*old.engine, MixedRequests()),
                   "updated");
  }
}

TEST(Engine, RefusesWhatItCannotServeAndTakesNothing) {
  ToyEngine toy(ToyEngineConfig());
  Engine& engine = *toy.engine;
  const auto refusal = [&](auto change) {
    Request r = ToyRequest(1, 5, 4);
    change(r);
    return engine.Submit(std::move(r));
  };
  EXPECT_EQ(refusal([](Request& r) { r.prompt.clear(); }), "the prompt is empty");
  EXPECT_EQ(refusal([](Request& r) { r.prompt[2] = 97; }),
            "token id 97 at position 2 is outside the vocabulary of 97");
  EXPECT_EQ(refusal([](Request& r) { r.prompt[0] = -1; }),
            "token id -1 at position 0 is outside the vocabulary of 97");
  EXPECT_EQ(
      refusal([](Request& r) { r.prompt.assign(256, 5); }),
      "the prompt has 256 tokens; at most 255 fit into the context of 256 with one to generate");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.max_tokens = 0; }),
            "max_tokens is 0; it must be at least 1");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.top_p = 0; }), "top_p is 0; it must be in (0, 1]");
  EXPECT_EQ(engine.stats().waiting, 0);
  EXPECT_EQ(refusal([](Request&) {}), "");
  EXPECT_EQ(refusal([](Request&) {}), "request id 1 is in use");
}

TEST(Engine, RefusesWhenTheQueueIsFull) {
  EngineConfig config = ToyEngineConfig();
  config.max_queued = 2;
  ToyEngine toy(config);
  EXPECT_EQ(toy.engine->Submit(ToyRequest(1, 5, 4)), "");
  EXPECT_EQ(toy.engine->Submit(ToyRequest(2, 5, 4)), "");
  EXPECT_EQ(toy.engine->Submit(ToyRequest(3, 5, 4)), "the queue is full (2 waiting)");
}

TEST(Engine, ConfigurationErrorsNameTheKey) {
  EngineConfig config = ToyEngineConfig();
  config.max_batched_tokens = 8;
  ExpectError([&] { ToyEngine toy(config); }, {"engine.max_batched_tokens is 8"});
  config = ToyEngineConfig();
  config.max_context = 300;
  ExpectError([&] { ToyEngine toy(config); }, {"engine.max_context is 300", "256"});
  config = ToyEngineConfig();
  config.num_pages = 0;
  config.kv_memory_mb = 0;
  ExpectError([&] { ToyEngine toy(config); }, {"engine.kv_memory_mb is 0"});
}

TEST(Engine, StopsAtMaxTokensAndAtTheContext) {
  ToyEngine toy(ToyEngineConfig());
  const auto done = RunAll(*toy.engine, {ToyRequest(1, 5, 9), ToyRequest(2, 250, 50)});
  EXPECT_EQ(done[0].state, CompletionState::kLength);
  EXPECT_EQ(done[0].output.size(), 9u);
  EXPECT_EQ(done[1].state, CompletionState::kLength);
  EXPECT_EQ(done[1].output.size(), 6u);
}

TEST(Engine, TheHighestLimitsMeanNoLimit) {
  ToyEngine toy(ToyEngineConfig());
  Request most = ToyRequest(1, 250, INT32_MAX);
  Request least = ToyRequest(2, 250, INT32_MAX);
  least.sampling.min_tokens = INT32_MAX;
  for (int32_t id = 0; id < 16; ++id) least.sampling.stop_ids.push_back(id);
  for (const Completion& c : RunAll(*toy.engine, {most, least})) {
    EXPECT_EQ(c.state, CompletionState::kLength) << c.id;
    EXPECT_EQ(c.output.size(), 6u) << c.id;
  }
}

TEST(Engine, StopIdsEndACompletionButNotBeforeMinTokens) {
  ToyEngine toy(ToyEngineConfig());
  const Completion free = RunAll(*toy.engine, {ToyRequest(1, 5, 30)})[0];
  Request r = ToyRequest(1, 5, 30);
  r.sampling.stop_ids = {free.output[3]};
  size_t first = 0;
  while (free.output[first] != free.output[3]) ++first;
  const Completion stopped = RunAll(*toy.engine, {r})[0];
  EXPECT_EQ(stopped.state, CompletionState::kStopId);
  EXPECT_EQ(stopped.output,
            std::vector<int32_t>(free.output.begin(), free.output.begin() + first + 1));
  r.sampling.min_tokens = 8;
  const Completion later = RunAll(*toy.engine, {r})[0];
  ASSERT_GE(later.output.size(), 8u);
  for (int i = 0; i < 8; ++i) EXPECT_NE(later.output[i], free.output[3]) << i;
  // From then on any id ends it that is named.
  r.sampling.max_tokens = 200;
  for (int32_t id = 0; id < 15; ++id) r.sampling.stop_ids.push_back(id);
  const Completion many = RunAll(*toy.engine, {r})[0];
  EXPECT_EQ(many.state, CompletionState::kStopId);
  EXPECT_GT(many.output.size(), 8u);
  const auto ends = [&](int32_t id) { return id < 15 || id == free.output[3]; };
  for (size_t i = 0; i < many.output.size(); ++i)
    EXPECT_EQ(ends(many.output[i]), i + 1 == many.output.size()) << i;
}

TEST(Engine, TheStopCallbackEndsACompletion) {
  for (int run_ahead : {0, 1}) {
    EngineConfig config = ToyEngineConfig();
    config.run_ahead = run_ahead;
    ToyEngine toy(config);
    Request r = ToyRequest(1, 5, 30);
    r.stop = [](std::span<const int32_t> output) { return output.size() == 7; };
    std::vector<size_t> seen;
    r.progress = [&](std::span<const int32_t> output) { seen.push_back(output.size()); };
    const Completion c = RunAll(*toy.engine, {r})[0];
    EXPECT_EQ(c.state, CompletionState::kStopCallback);
    EXPECT_EQ(c.output.size(), 7u);
    EXPECT_EQ(seen, (std::vector<size_t>{1, 2, 3, 4, 5, 6, 7}));
  }
}

TEST(Engine, TheStopCallbackIsAskedAboutTheLastTokenToo) {
  ToyEngine toy(ToyEngineConfig());
  Request limited = ToyRequest(1, 5, 7);
  limited.stop = [](std::span<const int32_t> output) { return output.size() == 7; };
  Request full = ToyRequest(2, 250, 30);
  full.stop = [](std::span<const int32_t> output) { return output.size() == 6; };
  for (const Completion& c : RunAll(*toy.engine, {limited, full}))
    EXPECT_EQ(c.state, CompletionState::kStopCallback) << c.id;
}

TEST(Engine, ARecycledSlotNeverReplaysItsLastOccupant) {
  // One slot, run ahead: each request takes the slot of one that the host stopped while a further
  // step of it was already launched.
  EngineConfig config = ToyEngineConfig();
  config.max_running = 1;
  ToyEngine toy(config);
  std::vector<Request> requests;
  for (int i = 0; i < 20; ++i) {
    Request r = ToyRequest(i + 1, 3 + i % 5, 12);
    if (i % 2 == 0) r.stop = [](std::span<const int32_t> output) { return output.size() == 4; };
    requests.push_back(std::move(r));
  }
  ExpectSameBits(Alone(requests), RunAll(*toy.engine, requests), "one slot");
}

TEST(Engine, AbortReturnsWhatThereIs) {
  ToyEngine toy(ToyEngineConfig());
  ASSERT_EQ(toy.engine->Submit(ToyRequest(1, 5, 50)), "");
  std::vector<Completion> finished;
  for (int i = 0; i < 10; ++i) toy.engine->Step(finished);
  ASSERT_TRUE(finished.empty());
  toy.engine->Abort(1, "the user went away");
  toy.engine->Abort(99, "nobody");
  while (toy.engine->Step(finished)) {
  }
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].state, CompletionState::kAborted);
  EXPECT_EQ(finished[0].message, "the user went away");
  EXPECT_GT(finished[0].output.size(), 5u);
  EXPECT_EQ(finished[0].logprob.size(), finished[0].output.size());
  EXPECT_EQ(toy.engine->stats().running, 0);
  toy.engine->FlushPrefixCache();
  EXPECT_EQ(toy.engine->stats().pages_used, 0);
}

TEST(Engine, AnAbortIsHeardWhilePausedAndTorn) {
  ToyEngine toy(ToyEngineConfig());
  for (uint64_t id : {1, 2, 3}) ASSERT_EQ(toy.engine->Submit(ToyRequest(id, 5, 50)), "");
  std::vector<Completion> finished;
  for (int i = 0; i < 4; ++i) toy.engine->Step(finished);
  const auto late = std::chrono::steady_clock::now() + std::chrono::hours(1);
  const auto expect_abort = [&](uint64_t id) {
    toy.engine->Abort(id, "not wanted");
    toy.engine->WaitForWork(late);
    finished.clear();
    EXPECT_TRUE(toy.engine->Step(finished));
    ASSERT_EQ(finished.size(), 1u);
    EXPECT_EQ(finished[0].id, id);
    EXPECT_EQ(finished[0].state, CompletionState::kAborted);
    EXPECT_EQ(finished[0].message, "not wanted");
    EXPECT_EQ(finished[0].output.size(), 4u);
    EXPECT_FALSE(toy.engine->Step(finished));
  };
  toy.engine->Pause(late);
  expect_abort(2);
  toy.engine->Resume();
  {
    const SchedulerLock lock = toy.engine->Lock();
    toy.engine->MarkTorn(lock);
  }
  expect_abort(1);
  UpdateWeights(toy, 1, 2, InFlightPolicy::kKeep);
  finished.clear();
  while (toy.engine->Step(finished)) {
  }
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].output.size(), 50u);
}

TEST(Engine, SpansSayWhichPolicySampledEachToken) {
  ToyEngine toy(ToyEngineConfig());
  ASSERT_EQ(toy.engine->Submit(ToyRequest(1, 5, 30)), "");
  std::vector<Completion> finished;
  for (int i = 0; i < 11; ++i) toy.engine->Step(finished);
  const CommitResult result = UpdateWeights(toy, 4, 2, InFlightPolicy::kKeep);
  EXPECT_EQ(result.kept, 1);
  while (toy.engine->Step(finished)) {
  }
  ASSERT_EQ(finished.size(), 1u);
  // The lock reads the step in flight, so all eleven launched tokens are of version 0.
  EXPECT_EQ(finished[0].spans, (std::vector<PolicySpan>{{0, 11, 0}, {11, 30, 4}}));
  EXPECT_TRUE(finished[0].mixed_kv);
}

TEST(Engine, RecomputeContinuesAsThoughTheTokensHadBeenThePrompt) {
  ToyEngine toy(ToyEngineConfig());
  Request r = ToyRequest(1, 5, 30);
  ASSERT_EQ(toy.engine->Submit(r), "");
  std::vector<Completion> finished;
  for (int i = 0; i < 11; ++i) toy.engine->Step(finished);
  const CommitResult result = UpdateWeights(toy, 1, 2, InFlightPolicy::kRecompute);
  EXPECT_EQ(result.recomputed, 1);
  while (toy.engine->Step(finished)) {
  }
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_FALSE(finished[0].mixed_kv);
  EXPECT_EQ(finished[0].spans, (std::vector<PolicySpan>{{0, 11, 0}, {11, 30, 1}}));
  ToyEngine fresh(ToyEngineConfig(), 2);
  Request rest = r;
  rest.prompt.insert(rest.prompt.end(), finished[0].output.begin(),
                     finished[0].output.begin() + 11);
  rest.sampling.max_tokens = 19;
  const Completion expected = RunAll(*fresh.engine, {rest})[0];
  EXPECT_EQ(expected.output,
            std::vector<int32_t>(finished[0].output.begin() + 11, finished[0].output.end()));
  EXPECT_EQ(expected.logprob,
            std::vector<float>(finished[0].logprob.begin() + 11, finished[0].logprob.end()));
}

TEST(Engine, AnUpdateCanAbortAndARequestCanChooseOtherwise) {
  ToyEngine toy(ToyEngineConfig());
  Request kept = ToyRequest(2, 5, 30);
  kept.in_flight = InFlightPolicy::kKeep;
  ASSERT_EQ(toy.engine->Submit(ToyRequest(1, 5, 30)), "");
  ASSERT_EQ(toy.engine->Submit(kept), "");
  std::vector<Completion> finished;
  for (int i = 0; i < 6; ++i) toy.engine->Step(finished);
  const CommitResult result = UpdateWeights(toy, 1, 2, InFlightPolicy::kAbort);
  EXPECT_EQ(result.aborted, 1);
  EXPECT_EQ(result.kept, 1);
  while (toy.engine->Step(finished)) {
  }
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_EQ(finished[0].id, 1u);
  EXPECT_EQ(finished[0].state, CompletionState::kAborted);
  EXPECT_EQ(finished[0].message, "aborted by the update to policy version 1");
  EXPECT_EQ(finished[0].output.size(), 6u);
  EXPECT_EQ(finished[1].output.size(), 30u);
}

/// Steps beside a drain of all until it has ended.
void Drain(ToyEngine& toy, std::vector<Completion>& finished) {
  std::thread draining([&] {
    toy.engine->Drain(InFlightPolicy::kDrain,
                      std::chrono::steady_clock::now() + std::chrono::seconds(60));
  });
  while (!toy.engine->stats().holding) std::this_thread::yield();
  while (toy.engine->Step(finished)) {
  }
  draining.join();
}

TEST(Engine, DrainFinishesWhatHasBegunUnderTheOldPolicy) {
  EngineConfig config = ToyEngineConfig();
  config.max_running = 2;
  ToyEngine toy(config);
  for (int i = 1; i <= 4; ++i) ASSERT_EQ(toy.engine->Submit(ToyRequest(i, 5, 10)), "");
  std::vector<Completion> finished;
  for (int i = 0; i < 3; ++i) toy.engine->Step(finished);
  Drain(toy, finished);
  UpdateWeights(toy, 1, 2, InFlightPolicy::kDrain);
  while (toy.engine->Step(finished)) {
  }
  ASSERT_EQ(finished.size(), 4u);
  for (const Completion& c : finished) {
    EXPECT_EQ(c.spans, (std::vector<PolicySpan>{{0, 10, c.id <= 2 ? 0 : 1}})) << c.id;
    EXPECT_FALSE(c.mixed_kv);
  }
}

TEST(Engine, WhatADrainLimitCutsOffIsAborted) {
  ToyEngine toy(ToyEngineConfig());
  ASSERT_EQ(toy.engine->Submit(ToyRequest(1, 5, 200)), "");
  std::vector<Completion> finished;
  for (int i = 0; i < 3; ++i) toy.engine->Step(finished);
  toy.engine->Drain(InFlightPolicy::kDrain, std::chrono::steady_clock::now());
  EXPECT_EQ(UpdateWeights(toy, 1, 2, InFlightPolicy::kDrain).aborted, 1);
  while (toy.engine->Step(finished)) {
  }
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].state, CompletionState::kAborted);
  EXPECT_EQ(finished[0].message, "not finished within the drain limit of a weight update");
}

// Nothing can finish there, and the update that is to mend it must not lose what is in flight.
TEST(Engine, ADrainOfATornEngineNeitherWaitsNorAborts) {
  ToyEngine toy(ToyEngineConfig());
  ASSERT_EQ(toy.engine->Submit(ToyRequest(1, 5, 20)), "");
  std::vector<Completion> finished;
  for (int i = 0; i < 3; ++i) toy.engine->Step(finished);
  {
    const SchedulerLock lock = toy.engine->Lock();
    toy.engine->MarkTorn(lock);
  }
  toy.engine->Drain(InFlightPolicy::kDrain,
                    std::chrono::steady_clock::now() + std::chrono::hours(1));
  const CommitResult result = UpdateWeights(toy, 1, 2, InFlightPolicy::kDrain);
  EXPECT_EQ(result.kept, 1);
  EXPECT_EQ(result.aborted, 0);
  while (toy.engine->Step(finished)) {
  }
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].spans, (std::vector<PolicySpan>{{0, 3, 0}, {3, 20, 1}}));
}

TEST(Engine, ADrainLimitLeavesScoredListsAlone) {
  EngineConfig config = ToyEngineConfig();
  config.max_running = 2;
  config.max_batched_tokens = 4;
  ToyEngine toy(config);
  Request score = ToyRequest(2, 100, 1);
  score.score_only = true;
  ASSERT_EQ(toy.engine->Submit(ToyRequest(1, 5, 200)), "");
  ASSERT_EQ(toy.engine->Submit(score), "");
  std::vector<Completion> finished;
  for (int i = 0; i < 6; ++i) toy.engine->Step(finished);
  ASSERT_EQ(toy.engine->stats().running, 2);
  toy.engine->Drain(InFlightPolicy::kDrain, std::chrono::steady_clock::now());
  const CommitResult result = UpdateWeights(toy, 1, 2, InFlightPolicy::kDrain);
  EXPECT_EQ(result.aborted, 1);
  EXPECT_EQ(result.recomputed, 1);
  while (toy.engine->Step(finished)) {
  }
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_EQ(finished[1].state, CompletionState::kScored);
  EXPECT_EQ(finished[1].spans, (std::vector<PolicySpan>{{0, 99, 1}}));
}

TEST(Engine, ADrainAdmitsNobodyOfAGroupWhosePromptIsBeingPrefilled) {
  EngineConfig config = ToyEngineConfig();
  config.max_running = 4;
  config.max_batched_tokens = 8;
  ToyEngine toy(config);
  for (uint64_t id : {1, 2, 3}) {
    Request r = ToyRequest(1, 30, 5);
    r.id = id;
    r.group_id = 9;
    ASSERT_EQ(toy.engine->Submit(r), "");
  }
  std::vector<Completion> finished;
  toy.engine->Step(finished);
  Drain(toy, finished);
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].spans, (std::vector<PolicySpan>{{0, 5, 0}}));
  UpdateWeights(toy, 1, 2, InFlightPolicy::kDrain);
  while (toy.engine->Step(finished)) {
  }
  ASSERT_EQ(finished.size(), 3u);
  for (size_t i : {1, 2}) EXPECT_EQ(finished[i].spans, (std::vector<PolicySpan>{{0, 5, 1}}));
}

// What an update sends back into the queue is not what max_queued limits.
TEST(Engine, TheQueueHasRoomForTheRunningThatAnUpdateRecomputes) {
  EngineConfig config = ToyEngineConfig();
  config.max_queued = 2;
  ToyEngine toy(config);
  std::vector<Completion> finished;
  for (uint64_t id : {1, 2, 3}) {
    ASSERT_EQ(toy.engine->Submit(ToyRequest(id, 5, 20)), "");
    toy.engine->Step(finished);
  }
  UpdateWeights(toy, 1, 2, InFlightPolicy::kRecompute);
  ASSERT_EQ(toy.engine->stats().waiting, 3);
  EXPECT_EQ(toy.engine->Submit(ToyRequest(4, 5, 20)), "");
  EXPECT_EQ(toy.engine->Submit(ToyRequest(5, 5, 20)), "");
  EXPECT_EQ(toy.engine->Submit(ToyRequest(6, 5, 20)), "the queue is full (2 waiting)");
  while (toy.engine->Step(finished)) {
  }
  EXPECT_EQ(finished.size(), 5u);
}

// A list that needs nearly all pages at once, while shorter requests never cease to arrive.
TEST(Engine, AListWhoseLogitsAreWantedIsNotStarved) {
  EngineConfig config = ToyEngineConfig();
  config.num_pages = 256 / config.page_size;
  config.prefix_cache = false;
  ToyEngine toy(config);
  std::vector<Completion> finished;
  uint64_t next = 1;
  const auto keep_busy = [&] {
    while (toy.engine->stats().waiting < 4)
      ASSERT_EQ(toy.engine->Submit(ToyRequest(++next, 60, 30)), "");
  };
  keep_busy();
  for (int i = 0; i < 10; ++i) toy.engine->Step(finished);
  Request score = ToyRequest(1, 200, 1);
  score.score_only = score.want_logits = true;
  ASSERT_EQ(toy.engine->Submit(score), "");
  const auto scored = [&] {
    return std::any_of(finished.begin(), finished.end(),
                       [](const Completion& c) { return c.state == CompletionState::kScored; });
  };
  for (int i = 0; i < 2000 && !scored(); ++i) {
    keep_busy();
    toy.engine->Step(finished);
  }
  EXPECT_TRUE(scored());
}

// Steps go on between a drain and its commit.
TEST(Engine, AnUpdateCountsWhatItsDrainCutOffBeforeTheCommit) {
  ToyEngine toy(ToyEngineConfig());
  for (uint64_t id : {1, 2, 3}) ASSERT_EQ(toy.engine->Submit(ToyRequest(id, 5, 200)), "");
  std::vector<Completion> finished;
  for (int i = 0; i < 3; ++i) toy.engine->Step(finished);
  toy.engine->Abort(1, "by its owner");
  toy.engine->Drain(InFlightPolicy::kDrain, std::chrono::steady_clock::now());
  while (finished.size() < 2) toy.engine->Step(finished);
  EXPECT_EQ(UpdateWeights(toy, 1, 2, InFlightPolicy::kDrain).aborted, 2);
  EXPECT_EQ(UpdateWeights(toy, 2, 3, InFlightPolicy::kDrain).aborted, 0) << "of an earlier one";

  ASSERT_EQ(toy.engine->Submit(ToyRequest(4, 5, 200)), "");
  for (int i = 0; i < 3; ++i) toy.engine->Step(finished);
  toy.engine->Drain(InFlightPolicy::kDrain, std::chrono::steady_clock::now());
  toy.engine->Step(finished);
  toy.engine->ResumeAdmission();  // that update has failed
  EXPECT_EQ(UpdateWeights(toy, 3, 4, InFlightPolicy::kDrain).aborted, 0);
}

TEST(Engine, ATornStoreIsNeverServed) {
  ToyEngine toy(ToyEngineConfig());
  ASSERT_EQ(toy.engine->Submit(ToyRequest(1, 5, 10)), "");
  std::vector<Completion> finished;
  toy.engine->Step(finished);
  {
    const SchedulerLock lock = toy.engine->Lock();
    toy.engine->MarkTorn(lock);
  }
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(toy.engine->Step(finished));
  EXPECT_TRUE(finished.empty());
  EXPECT_TRUE(toy.engine->stats().torn);
  UpdateWeights(toy, 1, 2, InFlightPolicy::kKeep);
  while (toy.engine->Step(finished)) {
  }
  EXPECT_EQ(finished.size(), 1u);
}

TEST(Engine, LogitsThatAreNotFiniteFailACompletion) {
  ToyEngine toy(ToyEngineConfig());
  const uint16_t nan = 0x7fc0;  // bfloat16
  const ManifestEntry* q = toy.store->manifest().Find("model.layers.1.self_attn.q_proj.weight");
  ASSERT_NE(q, nullptr);
  toy.backend->Upload(static_cast<char*>(toy.store->live()) + q->offset, &nan, sizeof(nan));
  Request score = ToyRequest(2, 9, 1);
  score.score_only = true;
  for (const Completion& c : RunAll(*toy.engine, {ToyRequest(1, 9, 12), score})) {
    EXPECT_EQ(c.state, CompletionState::kFailed);
    EXPECT_NE(c.message.find("no finite log-probability"), std::string::npos) << c.message;
    EXPECT_TRUE(c.output.empty());
  }
  EXPECT_EQ(toy.engine->stats().running, 0);
}

TEST(Engine, APauseIsALeaseThatExpires) {
  ToyEngine toy(ToyEngineConfig());
  ASSERT_EQ(toy.engine->Submit(ToyRequest(1, 5, 3)), "");
  std::vector<Completion> finished;
  toy.engine->Pause(std::chrono::steady_clock::now() + std::chrono::hours(1));
  EXPECT_FALSE(toy.engine->Step(finished));
  toy.engine->Pause(std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
  toy.engine->WaitForWork(std::chrono::steady_clock::now() + std::chrono::hours(1));
  while (toy.engine->Step(finished)) {
  }
  EXPECT_EQ(finished.size(), 1u);
}

TEST(Engine, UpdatesMoveNoCapturedAddress) {
  ToyEngine toy(ToyEngineConfig());
  const void* live = toy.store->live();
  const void* head = toy.store->head().data;
  for (int version = 1; version <= 5; ++version)
    UpdateWeights(toy, version, version, InFlightPolicy::kKeep);
  EXPECT_EQ(toy.store->live(), live);
  EXPECT_EQ(toy.store->head().data, head);
}

TEST(Engine, LogitsOfEveryPromptPositionOnRequest) {
  EngineConfig config = ToyEngineConfig();
  config.max_running = 4;
  config.max_batched_tokens = 9;
  ToyEngine toy(config);
  Request r = ToyRequest(1, 30, 1);
  r.score_only = true;
  r.want_logits = true;
  std::vector<Request> requests = {ToyRequest(2, 5, 20), r, ToyRequest(3, 50, 20)};
  const std::vector<Completion> done = RunAll(*toy.engine, requests);
  ASSERT_EQ(done[1].logits.size(), 30u * 97);
  ASSERT_EQ(done[1].logprob_raw.size(), 29u);
  for (int i = 0; i < 29; ++i) {
    const float* row = done[1].logits.data() + i * 97;
    double sum = 0;
    for (int v = 0; v < 97; ++v) sum += std::exp(static_cast<double>(row[v]));
    EXPECT_NEAR(done[1].logprob_raw[i], row[r.prompt[i + 1]] - std::log(sum), 1e-5) << i;
  }
}

TEST(Engine, HiddenStatesComeWithTheTokensTheyDrew) {
  ToyEngine toy(ToyEngineConfig());
  Request r = ToyRequest(1, 9, 12);
  r.want_hidden = true;
  const Completion c = RunAll(*toy.engine, {r, ToyRequest(2, 9, 12)})[0];
  ASSERT_EQ(c.hidden.size(), 12u * 64);
  // The head applied to them gives the raw log-probabilities back.
  std::vector<uint16_t> norm(64), head(97 * 64);
  toy.backend->Download(norm.data(), toy.store->final_norm().data, norm.size() * 2);
  toy.backend->Download(head.data(), toy.store->head().data, head.size() * 2);
  const auto value = [](uint16_t bits) {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float f;
    std::memcpy(&f, &word, sizeof(f));
    return static_cast<double>(f);
  };
  for (int t = 0; t < 12; ++t) {
    const float* h = c.hidden.data() + t * 64;
    double squares = 0;
    for (int i = 0; i < 64; ++i) squares += static_cast<double>(h[i]) * h[i];
    const double scale = 1 / std::sqrt(squares / 64 + 1e-5);
    std::vector<double> logits(97);
    double sum = 0;
    for (int v = 0; v < 97; ++v) {
      for (int i = 0; i < 64; ++i)
        logits[v] += h[i] * scale * value(norm[i]) * value(head[v * 64 + i]);
      sum += std::exp(logits[v]);
    }
    EXPECT_NEAR(c.logprob_raw[t], logits[c.output[t]] - std::log(sum),
                testing::LowPrecision(*toy.backend) ? 3e-2 : 1e-4)
        << t;
  }
}

}  // namespace
}  // namespace rollcast
