#include "trainer_bridge/engine_update_target.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/testing/toy_model.h"

namespace rollcast {
namespace {

using testing::RunAll;
using testing::ToyConfigJson;
using testing::ToyEngine;
using testing::ToyEngineConfig;
using testing::ToyRequest;

/// The tensors of `toy`'s live arena, as a trainer with these weights would publish them.
std::vector<NamedTensor> TensorsOf(const ToyEngine& toy) {
  std::vector<NamedTensor> tensors;
  for (const ManifestEntry& entry : toy.store->manifest().entries())
    tensors.push_back({entry.name, entry.dtype, entry.shape,
                       static_cast<const std::byte*>(toy.store->live()) + entry.offset});
  return tensors;
}

/// A trainer (this thread) and one rank (two threads: bridge and engine) around a toy engine.
class EngineUpdateTest : public ::testing::Test {
 protected:
  EngineUpdateTest()
      : toy_(ToyEngineConfig(), 1),
        target_(*toy_.engine, *toy_.store),
        communicators_(MakeThreadCommunicators(2)),
        publisher_(*communicators_[0], {1}, {MessageWeightTransport()}, "mpi", [](Message) {}) {}
  ~EngineUpdateTest() override {
    stop_ = true;
    if (bridge_.joinable()) bridge_.join();
    if (steps_.joinable()) steps_.join();
  }

  void StartBridge() {
    bridge_ = std::thread([this] {
      std::function<void()> round;
      WeightReceiver receiver(*communicators_[1], target_, {MessageWeightTransport()},
                              {[&] { round(); }, nullptr, nullptr});
      round = [&] {
        while (auto message = communicators_[1]->Poll()) receiver.Handle(*message);
      };
      for (Backoff backoff; !stop_; backoff.Wait()) {
        round();
        receiver.Tick();
      }
    });
  }
  void StartSteps() {
    steps_ = std::thread([this] {
      std::vector<Completion> finished;
      while (!stop_) {
        if (!toy_.engine->Step(finished))
          toy_.engine->WaitForWork(Clock::now() + std::chrono::milliseconds(2));
        const std::lock_guard lock(mutex_);
        for (Completion& completion : finished) completions_.push_back(std::move(completion));
        finished.clear();
      }
    });
  }
  std::optional<Completion> AwaitCompletion() {
    const Deadline limit = Clock::now() + std::chrono::seconds(60);
    for (Backoff backoff; Clock::now() < limit; backoff.Wait()) {
      const std::lock_guard lock(mutex_);
      if (!completions_.empty()) return completions_.front();
    }
    return std::nullopt;
  }

  ToyEngine toy_;
  EngineUpdateTarget target_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  WeightPublisher publisher_;
  std::atomic<bool> stop_{false};
  std::thread bridge_, steps_;
  std::mutex mutex_;
  std::vector<Completion> completions_;
};

TEST_F(EngineUpdateTest, AfterAnUpdateTheEngineIsTheOneWithTheNewWeights) {
  StartBridge();
  ToyEngine other(ToyEngineConfig(), 2);
  const std::vector<NamedTensor> tensors = TensorsOf(other);
  const std::vector<Completion> expected = RunAll(*other.engine, {ToyRequest(1, 20, 12)});
  for (const UpdateMode mode : {UpdateMode::kStaged, UpdateMode::kInPlace}) {
    UpdateOptions options;
    options.mode = mode;
    const SyncReport report = publisher_.Publish(options, tensors);
    ASSERT_TRUE(report.committed) << report.error;
    EXPECT_EQ(report.version, mode == UpdateMode::kStaged ? 1 : 2);
    EXPECT_EQ(report.digest, toy_.store->Digest(toy_.store->live()));
    EXPECT_EQ(report.digest, other.store->Digest(other.store->live()));
    EXPECT_EQ(report.bytes, static_cast<int64_t>(toy_.store->manifest().payload_bytes()));
    const std::vector<Completion> got = RunAll(*toy_.engine, {ToyRequest(1, 20, 12)});
    EXPECT_EQ(got[0].output, expected[0].output);
    EXPECT_EQ(got[0].logprob, expected[0].logprob);
    EXPECT_EQ(got[0].spans.front().version, report.version);
  }
}

TEST_F(EngineUpdateTest, InFlightPoliciesReachTheEngine) {
  StartBridge();
  StartSteps();
  const ToyEngine trainer(ToyEngineConfig(), 1);
  const std::vector<NamedTensor> tensors = TensorsOf(trainer);
  struct Case {
    InFlightPolicy policy;
    CompletionState state;
  };
  uint64_t id = 1;
  for (const Case& c : {Case{InFlightPolicy::kKeep, CompletionState::kLength},
                        Case{InFlightPolicy::kRecompute, CompletionState::kLength},
                        Case{InFlightPolicy::kDrain, CompletionState::kLength},
                        Case{InFlightPolicy::kAbort, CompletionState::kAborted}}) {
    // The sequence waits for the update in the middle, so that it is in flight at the commit; one
    // that is drained runs on once its drain has begun.
    std::atomic<bool> begun{false}, released{false};
    std::thread releases([&] {
      while (c.policy == InFlightPolicy::kDrain && !toy_.engine->stats().holding)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (c.policy == InFlightPolicy::kDrain) released = true;
    });
    Request request = ToyRequest(id, 10, 200);
    request.sampling.ignore_eos = true;
    request.progress = [&](std::span<const int32_t> output) {
      if (output.size() == 4) begun = true;
      if (!released) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    };
    ASSERT_EQ(toy_.engine->Submit(std::move(request)), "");
    while (!begun) std::this_thread::yield();
    UpdateOptions options;
    options.in_flight = c.policy;
    const SyncReport report = publisher_.Publish(options, tensors);
    releases.join();
    released = true;
    ASSERT_TRUE(report.committed) << report.error;
    const std::optional<Completion> completion = AwaitCompletion();
    ASSERT_TRUE(completion.has_value());
    EXPECT_EQ(completion->state, c.state) << Name(c.policy);
    EXPECT_EQ(report.sequences_kept, c.policy == InFlightPolicy::kKeep);
    EXPECT_EQ(report.sequences_recomputed, c.policy == InFlightPolicy::kRecompute);
    EXPECT_EQ(report.sequences_aborted, c.policy == InFlightPolicy::kAbort);
    if (c.policy == InFlightPolicy::kKeep || c.policy == InFlightPolicy::kRecompute) {
      ASSERT_EQ(completion->spans.size(), 2u);
      EXPECT_EQ(completion->spans.back().version, report.version);
      EXPECT_EQ(completion->mixed_kv, c.policy == InFlightPolicy::kKeep);
    } else {
      EXPECT_EQ(completion->spans.back().version, report.version - 1);
    }
    const std::lock_guard lock(mutex_);
    completions_.clear();
    ++id;
  }
}

TEST_F(EngineUpdateTest, ACommitCopiesTheTensorsItNamesAndNoOthers) {
  const ToyEngine other(ToyEngineConfig(), 2), untouched(ToyEngineConfig(), 1);
  DeviceTransfer& transfer = toy_.store->transfer();
  const std::vector<ManifestEntry>& entries = toy_.store->manifest().entries();
  const auto sums = [&](const void* arena) {
    std::vector<DeviceRange> ranges;
    for (const ManifestEntry& entry : entries)
      ranges.push_back({static_cast<const std::byte*>(arena) + entry.offset, entry.bytes});
    return transfer.DigestSums(ranges);
  };
  const std::vector<uint64_t> before = sums(untouched.store->live());
  const std::vector<uint64_t> after = sums(other.store->live());
  transfer.Copy(toy_.store->staging(), other.store->live(), toy_.store->manifest().arena_bytes());
  transfer.Synchronize();
  // Runs of one, two and three entries, the last entry among them.
  const auto last = static_cast<uint32_t>(entries.size() - 1);
  const std::vector<uint32_t> carried = {1, 4, 5, last - 2, last - 1, last};
  target_.Commit(carried, 0, std::nullopt, InFlightPolicy::kKeep);
  const std::vector<uint64_t> live = sums(toy_.store->live());
  for (uint32_t i = 0; i < entries.size(); ++i) {
    const bool copied = std::find(carried.begin(), carried.end(), i) != carried.end();
    EXPECT_EQ(live[i], copied ? after[i] : before[i]) << entries[i].name;
  }
}

TEST_F(EngineUpdateTest, SumsFollowWhateverAnUpdateWrites) {
  const ToyEngine other(ToyEngineConfig(), 2), third(ToyEngineConfig(), 3);
  DeviceTransfer& transfer = toy_.store->transfer();
  const std::vector<ManifestEntry>& entries = toy_.store->manifest().entries();
  const auto overwrite = [&](void* arena, const ToyEngine& with, std::span<const uint32_t> which) {
    for (const uint32_t i : which)
      transfer.Copy(static_cast<std::byte*>(arena) + entries[i].offset,
                    static_cast<const std::byte*>(with.store->live()) + entries[i].offset,
                    entries[i].bytes);
    transfer.Synchronize();
  };
  const auto sum = [&](const void* arena, uint32_t i) {
    const DeviceRange range{static_cast<const std::byte*>(arena) + entries[i].offset,
                            entries[i].bytes};
    return transfer.DigestSums({&range, 1}).front();
  };
  const auto expect_sums = [&](std::span<const uint32_t> carried, UpdateMode mode) {
    const std::vector<uint64_t> sums = target_.DigestSums(carried, mode);
    ASSERT_EQ(sums.size(), entries.size());
    for (uint32_t i = 0; i < entries.size(); ++i) {
      const bool staged = mode == UpdateMode::kStaged &&
                          std::find(carried.begin(), carried.end(), i) != carried.end();
      EXPECT_EQ(sums[i], sum(staged ? toy_.store->staging() : toy_.store->live(), i))
          << entries[i].name;
    }
  };
  const std::vector<uint32_t> first = {0, 3, 4}, second = {3, 5};
  // Dropped after it was verified: nothing of it is live.
  overwrite(toy_.store->staging(), other, first);
  expect_sums(first, UpdateMode::kStaged);
  expect_sums(second, UpdateMode::kStaged);
  overwrite(toy_.store->staging(), other, first);
  expect_sums(first, UpdateMode::kStaged);
  target_.Commit(first, 0, std::nullopt, InFlightPolicy::kKeep);
  expect_sums({}, UpdateMode::kStaged);
  // In place, and once more after a try that did not get as far as its sums.
  for (const ToyEngine* source : {&third, &other}) {
    target_.MarkTorn(second);
    overwrite(toy_.store->live(), *source, second);
  }
  expect_sums(second, UpdateMode::kInPlace);
  target_.Commit({}, 1, std::nullopt, InFlightPolicy::kKeep);
  // Entry 3 has been in place and staged by now; a commit without sums before it forgets.
  overwrite(toy_.store->staging(), third, first);
  target_.Commit(first, 2, std::nullopt, InFlightPolicy::kKeep);
  expect_sums(second, UpdateMode::kInPlace);
  expect_sums({}, UpdateMode::kStaged);
}

TEST_F(EngineUpdateTest, ATornStoreDoesNotStepUntilACommit) {
  target_.MarkTorn({});
  EXPECT_TRUE(target_.torn());
  ASSERT_EQ(toy_.engine->Submit(ToyRequest(1, 5, 2)), "");
  std::vector<Completion> finished;
  EXPECT_FALSE(toy_.engine->Step(finished));
  const auto done = target_.Commit({}, 0, std::nullopt, InFlightPolicy::kKeep);
  EXPECT_EQ(done.version, 1);
  EXPECT_FALSE(target_.torn());
  EXPECT_TRUE(toy_.engine->Step(finished));
}

TEST_F(EngineUpdateTest, ACommitUponAnotherLiveVersionIsRefused) {
  EXPECT_THROW(target_.Commit({}, 3, std::nullopt, InFlightPolicy::kKeep), Error);
  EXPECT_EQ(toy_.engine->version(), 0);
}

TEST_F(EngineUpdateTest, DrainServesTheBridgeWhileItWaits) {
  Request request = ToyRequest(1, 10, 60);
  request.sampling.ignore_eos = true;
  ASSERT_EQ(toy_.engine->Submit(std::move(request)), "");
  std::vector<Completion> finished;
  toy_.engine->Step(finished);
  int served = 0;
  // Nobody steps but the service itself: the drain ends because it is called.
  target_.Drain(InFlightPolicy::kDrain, Clock::now() + std::chrono::seconds(60), [&] {
    ++served;
    toy_.engine->Step(finished);
  });
  EXPECT_GT(served, 0);
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].state, CompletionState::kLength);
  target_.ResumeAdmission();
}

TEST_F(EngineUpdateTest, ADrainEndsAtOnceWithWhatItsServiceThrows) {
  ASSERT_EQ(toy_.engine->Submit(ToyRequest(1, 10, 60)), "");
  std::vector<Completion> finished;
  toy_.engine->Step(finished);
  const auto begin = Clock::now();
  EXPECT_THROW(target_.Drain(InFlightPolicy::kDrain, begin + std::chrono::seconds(20),
                             [] { throw Error("the update has been given up"); }),
               Error);
  EXPECT_FALSE(toy_.engine->stats().holding);
  while (toy_.engine->Step(finished)) {
  }
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].state, CompletionState::kLength) << "and not cut off by its limit";
}

TEST(EngineUpdateTarget, ATiedHeadIsAnAliasOnTheWire) {
  std::string config = ToyConfigJson();
  const std::string untied = "\"tie_word_embeddings\": false";
  config.replace(config.find(untied), untied.size(), "\"tie_word_embeddings\": true");
  ToyEngine tied(ToyEngineConfig(), 1, 1, config);
  const WireManifest wire = ToWire(tied.store->manifest());
  ASSERT_EQ(wire.aliases.size(), 1u);
  EXPECT_EQ(wire.aliases[0], (TensorAlias{"lm_head.weight", "model.embed_tokens.weight"}));
  EXPECT_EQ(wire.entries, tied.store->manifest().entries());
  EXPECT_TRUE(ToWire(ToyEngine(ToyEngineConfig()).store->manifest()).aliases.empty());
}

}  // namespace
}  // namespace rollcast
