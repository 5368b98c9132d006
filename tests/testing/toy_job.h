// A whole job as threads of one process: a trainer client (rank 0) and rollout ranks with real
// engines over toy weights.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rollout/rollout_worker.h"
#include "tests/testing/faulty_communicator.h"
#include "tests/testing/toy_model.h"
#include "trainer_bridge/rollout_rank.h"
#include "trainer_bridge/trainer_client.h"

namespace rollcast::testing {

/// The reward of a completion is its number of tokens, or what `score` says.
class ToyScorer final : public Scorer {
 public:
  explicit ToyScorer(std::function<Score(const ScoreInput&)> score = nullptr)
      : score_(std::move(score)) {}
  std::vector<Score> ScoreBatch(std::span<const ScoreInput> inputs) override;

 private:
  std::function<Score(const ScoreInput&)> score_;
};

class ToyJob {
 public:
  struct Options {
    int workers = 2;
    EngineConfig engine = ToyEngineConfig();
    int max_tries = 3;
    PolicyVersion max_policy_lag = 1;
    double heartbeat_s = 0.2;
    double silence_s = 20;  // generous: a loaded machine is no fault
    std::function<Score(const ScoreInput&)> score;
    int break_scorer = -1;                     // the rank whose scorer throws "the scorer broke"
    std::map<int, std::vector<Fault>> faults;  // by rank; 0 = the trainer
  };

  explicit ToyJob(const Options& options);
  /// Ends the job by Fail if it has not ended.
  ~ToyJob();

  TrainerClient& client() { return *client_; }
  /// Rank `rank` neither sends nor receives from now on, as if killed.
  void Kill(int rank) { killed_.at(static_cast<size_t>(rank)) = true; }
  /// Waits for the rank's thread; what it threw, or empty.
  std::string Join(int rank);
  /// What the coordinator has put on disk, in order.
  std::vector<Trajectory> appended();
  std::vector<SyncReport> updates();
  bool closed() const { return closed_; }
  /// The ranks' tensors, as a trainer would publish them, of random weights of `seed`.
  std::vector<NamedTensor> Weights(uint64_t seed);

 private:
  void RunWorker(int rank);
  void RunTrainer();

  const Options options_;
  Roles roles_;
  std::vector<std::unique_ptr<FaultyCommunicator>> communicators_;
  std::vector<std::thread> threads_;
  std::vector<std::string> ended_with_;
  std::vector<std::atomic<bool>> killed_;
  std::unique_ptr<TrainerClient> client_;
  std::atomic<bool> closed_{false};
  std::mutex mutex_;
  std::vector<Trajectory> appended_;
  std::vector<SyncReport> updates_;
  std::map<uint64_t, std::unique_ptr<ToyEngine>> weights_;
};

/// `count` prompts of different pseudo-random token ids, with ids "p0", "p1", ...
std::vector<PromptGroup> ToyPrompts(int count, int first = 0);

}  // namespace rollcast::testing
