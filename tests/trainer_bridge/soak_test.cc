// Many updates under continuous decoding: no leak, no recapture, no wrong span, no bit that differs
// from a freshly started engine at the same version. ROLLCAST_SOAK_UPDATES sets how many.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "kernels/device_info.h"
#include "tests/testing/toy_model.h"
#include "trainer_bridge/engine_update_target.h"
#include "trainer_bridge/weight_sync.h"

namespace rollcast {
namespace {

using testing::ToyEngine;
using testing::ToyEngineConfig;
using testing::ToyRequest;

constexpr uint64_t kFirstSeed = 1000;  // of the weights of version 0
constexpr int kInFlight = 12;

int Updates() {
  const char* count = std::getenv("ROLLCAST_SOAK_UPDATES");
  return count == nullptr ? 120 : std::atoi(count);
}

/// Resident bytes of this process, and of the device where it is one.
size_t MemoryInUse() {
  std::ifstream statm("/proc/self/statm");
  size_t size = 0, resident = 0;
  statm >> size >> resident;
  size_t bytes = resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (testing::TestBackend().device.starts_with("cuda"))
    bytes += DescribeDevice("cuda:0").used_bytes;
  return bytes;
}

/// The trainer's weights of one version, on the host.
class TrainerWeights {
 public:
  TrainerWeights()
      : backend_(MakeBackend({.device = "cpu", .threads = 1})),
        store_(ModelConfig::Parse(testing::ToyConfigJson(), "toy"), *backend_) {}

  std::vector<NamedTensor> Make(PolicyVersion version) {
    store_.FillRandom(kFirstSeed + static_cast<uint64_t>(version));
    std::vector<NamedTensor> tensors;
    for (const ManifestEntry& entry : store_.manifest().entries())
      tensors.push_back({entry.name, entry.dtype, entry.shape,
                         static_cast<const char*>(store_.live()) + entry.offset});
    return tensors;
  }

 private:
  std::unique_ptr<Backend> backend_;
  WeightStore store_;
};

/// One rollout rank: a bridge thread for updates, an engine thread that never runs dry.
class SoakRank {
 public:
  explicit SoakRank(std::unique_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)),
        toy_(ToyEngineConfig(), kFirstSeed),
        target_(*toy_.engine, *toy_.store),
        bridge_([this] { RunBridge(); }),
        stepper_([this] { RunEngine(); }) {}

  ~SoakRank() { Stop(); }

  /// Lets what is in flight finish.
  void Stop() {
    if (!stepper_.joinable()) return;
    stop_ = true;
    stepper_.join();
    bridge_.join();
  }

  Engine& engine() { return *toy_.engine; }
  int64_t finished() const { return finished_; }
  std::string failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  /// What has finished since the last call.
  std::vector<std::pair<Request, Completion>> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(done_, {});
  }

 private:
  void RunBridge() {
    try {
      WeightReceiver* receiver = nullptr;
      WeightReceiver::Callbacks callbacks;
      callbacks.service = [&] {
        while (std::optional<Message> message = communicator_->Poll()) receiver->Handle(*message);
      };
      WeightReceiver owned(*communicator_, target_, {MessageWeightTransport()}, callbacks);
      receiver = &owned;
      Backoff backoff;
      while (!stop_) {
        callbacks.service();
        owned.Tick();
        backoff.Wait();
      }
    } catch (const std::exception& error) {
      Fail(error.what());
    }
  }

  void RunEngine() {
    try {
      uint64_t next = 1;
      std::vector<Completion> finished;
      for (;;) {
        while (!stop_ && requests_.size() < kInFlight) {
          Request request = ToyRequest(next, 1 + static_cast<int>(next * 7 % 30),
                                       4 + static_cast<int>(next * 5 % 60), next);
          if (next % 3 == 1) request.sampling.temperature = 0;
          if (next % 4 == 1) request.in_flight = InFlightPolicy::kRecompute;
          requests_[next] = request;
          if (const std::string reason = toy_.engine->Submit(std::move(request)); !reason.empty())
            throw Error(reason);
          ++next;
        }
        if (stop_ && requests_.empty()) return;
        if (!toy_.engine->Step(finished))
          toy_.engine->WaitForWork(Clock::now() + std::chrono::milliseconds(10));
        const std::lock_guard lock(mutex_);
        for (Completion& completion : finished) {
          ++finished_;
          const uint64_t id = completion.id;
          done_.emplace_back(requests_.at(id), std::move(completion));
          requests_.erase(id);
        }
        finished.clear();
      }
    } catch (const std::exception& error) {
      Fail(error.what());
    }
  }

  void Fail(const std::string& what) {
    const std::lock_guard lock(mutex_);
    failure_ = what;
  }

  std::unique_ptr<Communicator> communicator_;
  ToyEngine toy_;
  EngineUpdateTarget target_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> finished_{0};
  std::map<uint64_t, Request> requests_;  // in flight; engine thread
  std::mutex mutex_;                      // of the two below
  std::vector<std::pair<Request, Completion>> done_;
  std::string failure_;
  std::thread bridge_, stepper_;  // last: they use the rest
};

/// Spans are whole, ascending and of versions that have been live.
void ExpectGoodSpans(const Completion& completion, PolicyVersion live) {
  int at = 0;
  PolicyVersion before = -1;
  for (const PolicySpan& span : completion.spans) {
    EXPECT_EQ(span.begin, at) << "request " << completion.id;
    EXPECT_LT(span.begin, span.end) << "request " << completion.id;
    EXPECT_GT(static_cast<int64_t>(span.version), static_cast<int64_t>(before))
        << "request " << completion.id;
    EXPECT_LE(span.version, live) << "request " << completion.id;
    at = span.end;
    before = span.version;
  }
  EXPECT_EQ(at, static_cast<int>(completion.output.size())) << "request " << completion.id;
}

/// The bits of a freshly started engine of the last span's version. Returns the tokens compared.
int ExpectFreshBits(const Request& request, const Completion& completion) {
  if (completion.mixed_kv || completion.spans.empty()) return 0;
  const PolicySpan& last = completion.spans.back();
  ToyEngine fresh(ToyEngineConfig(), kFirstSeed + static_cast<uint64_t>(last.version));
  Request score;
  score.id = 1;
  score.score_only = true;
  score.prompt = request.prompt;
  score.prompt.insert(score.prompt.end(), completion.output.begin(), completion.output.end());
  const Completion scored = testing::RunAll(*fresh.engine, {score}).front();
  for (int i = last.begin; i < last.end; ++i)
    EXPECT_EQ(completion.logprob_raw[static_cast<size_t>(i)],
              scored.logprob_raw[request.prompt.size() - 1 + static_cast<size_t>(i)])
        << "request " << completion.id << ", token " << i << ", version " << last.version;
  if (completion.spans.size() == 1 && completion.state == CompletionState::kLength) {
    const Completion again = testing::RunAll(*fresh.engine, {request}).front();
    EXPECT_EQ(again.output, completion.output) << "request " << completion.id;
    EXPECT_EQ(again.logprob, completion.logprob) << "request " << completion.id;
  }
  return last.end - last.begin;
}

TEST(Soak, UpdatesUnderContinuousDecoding) {
  const int updates = Updates();
  ASSERT_GE(updates, 40);
  const int check_every = std::max(1, updates / 100);
  auto communicators = MakeThreadCommunicators(2);
  WeightPublisher publisher(*communicators[0], {1}, {MessageWeightTransport()}, "mpi",
                            [](Message) {});
  SoakRank rank(std::move(communicators[1]));
  const int64_t captured = rank.engine().stats().graphs_captured;
  EXPECT_GT(captured, 0);

  constexpr std::array kPolicies = {InFlightPolicy::kKeep, InFlightPolicy::kRecompute,
                                    InFlightPolicy::kDrain, InFlightPolicy::kAbort};
  TrainerWeights trainer;
  size_t memory_early = 0;
  int compared = 0;
  std::map<size_t, int> span_counts;
  const auto check = [&](bool bits, PolicyVersion live) {
    for (const auto& [request, completion] : rank.Take()) {
      ExpectGoodSpans(completion, live);
      ++span_counts[completion.spans.size()];
      EXPECT_NE(completion.state, CompletionState::kFailed) << completion.message;
      if (bits) {
        const int tokens = ExpectFreshBits(request, completion);
        compared += tokens;
        if (tokens > 0) bits = false;  // one a checkpoint: fresh engines take their time
      }
    }
  };
  for (int update = 1; update <= updates; ++update) {
    // A second of decoding cannot pass between all updates; a few steps must.
    const int64_t steps = rank.engine().stats().steps;
    while (rank.engine().stats().steps < steps + 1 + update % 5 && rank.failure().empty())
      std::this_thread::yield();
    UpdateOptions options;
    options.mode = update % 2 == 0 ? UpdateMode::kStaged : UpdateMode::kInPlace;
    options.in_flight = kPolicies[static_cast<size_t>(update / 2 % 4)];
    const SyncReport report = publisher.Publish(options, trainer.Make(update));
    ASSERT_TRUE(report.committed) << report.error << rank.failure();
    ASSERT_EQ(report.version, update);
    check(update % check_every == 0, update);
    ASSERT_EQ(rank.failure(), "");
    if (update == updates / 4) memory_early = MemoryInUse();
    if (HasFailure()) return;
  }
  const size_t memory_late = MemoryInUse();
  rank.Stop();
  check(true, updates);
  ASSERT_EQ(rank.failure(), "");

  const EngineStats stats = rank.engine().stats();
  EXPECT_EQ(stats.version, updates);
  EXPECT_EQ(stats.updates, updates);
  EXPECT_EQ(stats.graphs_captured, captured);
  EXPECT_GT(stats.graph_replays, updates);
  EXPECT_EQ(stats.pages_used - stats.pages_cached, 0);
  EXPECT_GT(compared, updates / check_every);
  EXPECT_GT(span_counts[2], 0) << "no completion went through an update";
  EXPECT_LT(static_cast<double>(memory_late) - static_cast<double>(memory_early), 48e6)
      << "from " << memory_early << " to " << memory_late << " bytes";
  std::printf("%d updates, %lld steps, %lld completions, %d tokens compared, %+.1f MB\n", updates,
              static_cast<long long>(stats.steps), static_cast<long long>(rank.finished()),
              compared, (static_cast<double>(memory_late) - memory_early) * 1e-6);
}

}  // namespace
}  // namespace rollcast
