// Small models with seeded random weights, and engines over them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace rollcast::testing {

/// The device that engine tests run on: ROLLCAST_TEST_DEVICE, or the CPU.
BackendOptions TestBackend(int threads = 1);
/// True on a device whose activations are bfloat16: results then meet a reference at that precision
/// only.
bool LowPrecision(const Backend& backend);

/// config.json text of a two-layer Llama: 97 tokens, grouped heads, context 256. `extra` is put in
/// verbatim, for example "\"sliding_window\": 8,".
std::string ToyConfigJson(const std::string& extra = "");

/// A backend, weights of seed `seed`, and an engine over them.
struct ToyEngine {
  explicit ToyEngine(const EngineConfig& config = {}, uint64_t seed = 1, int threads = 1,
                     const std::string& config_json = ToyConfigJson());

  std::unique_ptr<Backend> backend;
  std::unique_ptr<WeightStore> store;
  std::unique_ptr<Engine> engine;
};

/// An engine configuration for toys: small pools, so that tests reach their limits.
EngineConfig ToyEngineConfig();

/// Submits all, steps until all have finished, and returns the completions in the order of
/// `requests`. Fails the test when one is refused.
std::vector<Completion> RunAll(Engine& engine, std::vector<Request> requests);

/// A request of `length` pseudo-random tokens.
Request ToyRequest(uint64_t id, int length, int max_tokens, uint64_t seed = 7);

/// Moves the engine to `version` with weights of seed `seed`, as a committed update would.
CommitResult UpdateWeights(ToyEngine& toy, PolicyVersion version, uint64_t seed,
                           InFlightPolicy policy);

}  // namespace rollcast::testing
