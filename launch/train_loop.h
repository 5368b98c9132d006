// The loop of the reference trainer: prompts, rollouts, an optimizer step, an update.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/model_config.h"
#include "launch/config.h"
#include "launch/grpo.h"
#include "rollout/prompt_source.h"
#include "rollout/rollout_buffer.h"
#include "trainer_bridge/trainer_client.h"

namespace rollcast {

/// What one update has done.
struct UpdateRecord {
  int update = 0;  // from 1
  PolicyVersion version = 0;
  double reward = 0;  // mean over the completions that were trained on
  double lag_mean = 0;
  PolicyVersion lag_max = 0;
  int completions = 0, left_out = 0;  // trained on; returned with another outcome
  int64_t tokens = 0;                 // of the completions that came in
  double total_s = 0;                 // the whole update
  double rollout_s = 0, step_s = 0;
  SyncReport sync;
  GrpoStats grpo;
};

/// One line about `record`, for the progress line.
std::string ProgressLine(const UpdateRecord& record, int updates);
/// The table at the end of a run, at most about 12 rows.
std::string Table(const std::vector<UpdateRecord>& records);
/// What updates have cost in completions that were aborted; empty when there were none.
std::string AbortedLine(const std::vector<UpdateRecord>& records);
/// Whether none of the last five updates had a group whose rewards differ.
bool NothingToLearn(const std::vector<UpdateRecord>& records);
/// How many updates at either end RewardGain compares: five, or half of fewer than ten.
size_t GainSpan(size_t updates);
/// Mean reward of the last GainSpan updates less that of the first; nothing below two updates.
std::optional<double> RewardGain(const std::vector<UpdateRecord>& records);

/// Whether the next batch is generated during the optimizer step and the update; else a batch is
/// asked for only when it is needed, and nothing is in flight during an update.
bool GeneratesDuringUpdates(const Config& config);

class TrainLoop {
 public:
  /// Reads prompts and the tensors that are trained. Throws Error naming what is wrong, also with
  /// trainer.save, before anything has been trained. All calls
  /// on one thread, which must not be the client's bridge thread.
  TrainLoop(const Config& config, TrainerClient& client);

  /// One rollout batch (or the reuse of one), one optimizer step, one published update. Rollouts of
  /// the next batch go on meanwhile when rollout.max_policy_lag allows it. Throws Error.
  UpdateRecord Update();

  /// Writes the policy of the last update as trainer.save says; the folder. Throws Error.
  std::filesystem::path Save();

 private:
  std::vector<Trajectory> Generate();
  void SubmitBatch();
  void Publish(UpdateRecord& record);

  const Config& config_;
  TrainerClient& client_;
  ModelConfig model_;
  std::unique_ptr<HeadGrpo> grpo_;
  PromptSource prompts_;
  RolloutBuffer buffer_;
  LivePolicy policy_;
  int updates_ = 0;         // made so far
  int64_t batches_ = 0;     // submitted so far
  bool submitted_ = false;  // a batch is under way that nobody has collected
  int fresh_ = 0;           // update that generated the batch in use
  int64_t tokens_ = 0;      // came in during this update
  std::set<std::filesystem::path> saved_;
};

}  // namespace rollcast
