// One rollout rank as a process: model, engine, worker and, on the first one, the trajectory file.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/weight_store.h"
#include "launch/config.h"
#include "launch/runtime.h"
#include "rollout/tokenizer.h"
#include "trainer_bridge/coordinator.h"

namespace rollcast {

/// A model with weights, ready to run. Members are destroyed in the right order.
struct LoadedModel {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<WeightStore> store;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Tokenizer> tokenizer;  // null where the model's folder has none and none is named

  /// Reads model.path. Throws Error naming the file at fault.
  static LoadedModel Load(const Config& config);
};

/// LoadTokenizer finds one.
bool HasTokenizer(const Config& config);
/// The tokenizer of [rollout] and [model]; null where there is none. Throws Error when one that is
/// named, or that lies in the model's folder, cannot be read.
std::unique_ptr<Tokenizer> LoadTokenizer(const Config& config);

/// Loads and serves until the job ends. `drive` (null with a trainer) is RolloutRankSeams::drive of
/// the coordinator. Returns "stopped by SIGINT" or the like when a job without a trainer was ended
/// by a signal to any of its ranks, with the outcome of every completion on disk; else empty.
std::string RunRolloutRank(const Config& config, World& world, const Roles& roles,
                           std::function<bool(Coordinator&)> drive);

}  // namespace rollcast
