#include "tests/testing/toy_job.h"

#include <random>
#include <utility>

#include "trainer_bridge/engine_update_target.h"

namespace rollcast::testing {

namespace {

/// Ends a rank's thread without a word to anybody.
struct Killed {};

}  // namespace

std::vector<Score> ToyScorer::ScoreBatch(std::span<const ScoreInput> inputs) {
  std::vector<Score> scores;
  for (const ScoreInput& input : inputs)
    scores.push_back(score_ ? score_(input)
                            : Score{static_cast<double>(input.completion_ids.size()), ""});
  return scores;
}

ToyJob::ToyJob(const Options& options)
    : options_(options),
      ended_with_(static_cast<size_t>(options.workers) + 1),
      killed_(static_cast<size_t>(options.workers) + 1) {
  const int size = options_.workers + 1;
  auto inner = MakeThreadCommunicators(size);
  roles_.ranks.resize(static_cast<size_t>(size));
  roles_.ranks[0].role = Role::kTrainer;
  for (int rank = 0; rank < size; ++rank) {
    const auto faults = options_.faults.find(rank);
    communicators_.push_back(std::make_unique<FaultyCommunicator>(
        std::move(inner[static_cast<size_t>(rank)]),
        faults == options_.faults.end() ? std::vector<Fault>{} : faults->second));
  }
  TrainerClientOptions client;
  client.heartbeat = std::chrono::duration<double>(options_.heartbeat_s);
  client.silence = std::chrono::duration<double>(options_.silence_s);
  client_ = std::make_unique<TrainerClient>(client);
  threads_.emplace_back([this] { RunTrainer(); });
  for (int rank = 1; rank < size; ++rank) threads_.emplace_back([this, rank] { RunWorker(rank); });
}

ToyJob::~ToyJob() {
  client_->Fail("the test is over");
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

std::string ToyJob::Join(int rank) {
  threads_.at(static_cast<size_t>(rank)).join();
  return ended_with_[static_cast<size_t>(rank)];
}

void ToyJob::RunTrainer() {
  FaultyCommunicator& communicator = *communicators_[0];
  try {
    client_->Serve(communicator, roles_, {MessageWeightTransport()}, "mpi", [&] {
      if (killed_[0]) communicator.GoSilent();
    });
  } catch (const std::exception& e) {
    TellOfFailure(communicator, roles_, e);
    ended_with_[0] = e.what();
  }
}

void ToyJob::RunWorker(int rank) {
  FaultyCommunicator& communicator = *communicators_[static_cast<size_t>(rank)];
  try {
    ToyEngine toy(options_.engine);
    RolloutWorkerOptions worker_options;
    worker_options.rank = rank;
    auto score = options_.score;
    if (rank == options_.break_scorer)
      score = [](const ScoreInput&) -> Score { throw std::runtime_error("the scorer broke"); };
    RolloutWorker worker(*toy.engine, nullptr, std::make_unique<ToyScorer>(std::move(score)),
                         worker_options);
    EngineUpdateTarget target(*toy.engine, *toy.store);
    RolloutRankOptions options;
    options.ready = {toy.store->manifest().digest(), toy.store->Digest(toy.store->live())};
    options.max_tries = options_.max_tries;
    options.max_policy_lag = options_.max_policy_lag;
    options.heartbeat = std::chrono::duration<double>(options_.heartbeat_s);
    options.silence = std::chrono::duration<double>(options_.silence_s);
    RolloutRankSeams seams;
    seams.append = [&](std::span<const Trajectory> trajectories) {
      const std::lock_guard lock(mutex_);
      appended_.insert(appended_.end(), trajectories.begin(), trajectories.end());
    };
    seams.on_update = [&](const SyncReport& report) {
      const std::lock_guard lock(mutex_);
      if (rank == 1) updates_.push_back(report);
    };
    seams.close = [&](const std::string&) { closed_ = true; };
    seams.check = [&] {
      if (killed_[static_cast<size_t>(rank)]) throw Killed();
    };
    RolloutRank(communicator, roles_, worker, target, {MessageWeightTransport()}, options,
                std::move(seams))
        .Run();
  } catch (const Killed&) {
    communicator.GoSilent();
    ended_with_[static_cast<size_t>(rank)] = "killed";
  } catch (const std::exception& e) {
    TellOfFailure(communicator, roles_, e);
    ended_with_[static_cast<size_t>(rank)] = e.what();
  }
}

std::vector<Trajectory> ToyJob::appended() {
  const std::lock_guard lock(mutex_);
  return appended_;
}

std::vector<SyncReport> ToyJob::updates() {
  const std::lock_guard lock(mutex_);
  return updates_;
}

std::vector<NamedTensor> ToyJob::Weights(uint64_t seed) {
  std::unique_ptr<ToyEngine>& toy = weights_[seed];
  if (toy == nullptr) toy = std::make_unique<ToyEngine>(options_.engine, seed);
  std::vector<NamedTensor> tensors;
  for (const ManifestEntry& entry : toy->store->manifest().entries())
    tensors.push_back({entry.name, entry.dtype, entry.shape,
                       static_cast<const std::byte*>(toy->store->live()) + entry.offset});
  return tensors;
}

std::vector<PromptGroup> ToyPrompts(int count, int first) {
  std::vector<PromptGroup> prompts;
  for (int i = first; i < first + count; ++i) {
    std::mt19937 random(static_cast<uint32_t>(i) + 1000);
    PromptGroup prompt;
    prompt.prompt_id = StrCat("p", i);
    for (int n = 3 + i % 7; n > 0; --n)
      prompt.tokens.push_back(static_cast<int32_t>(random() % 90) + 3);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace rollcast::testing
