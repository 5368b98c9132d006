#include "tests/testing/toy_model.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace rollcast::testing {

BackendOptions TestBackend(int threads) {
  const char* device = std::getenv("ROLLCAST_TEST_DEVICE");
  return {.device = device == nullptr ? "cpu" : device, .threads = threads};
}

bool LowPrecision(const Backend& backend) { return backend.activation_dtype() != DType::kF32; }

std::string ToyConfigJson(const std::string& extra) {
  return R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", )" + extra +
         R"("hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97, "max_position_embeddings": 256,
             "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false,
             "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2})";
}

ToyEngine::ToyEngine(const EngineConfig& config, uint64_t seed, int threads,
                     const std::string& config_json)
    : backend(MakeBackend(TestBackend(threads))),
      store(std::make_unique<WeightStore>(ModelConfig::Parse(config_json, "toy"), *backend)) {
  store->FillRandom(seed);
  engine = std::make_unique<Engine>(*store, config);
}

EngineConfig ToyEngineConfig() {
  EngineConfig config;
  config.max_running = 16;
  config.max_batched_tokens = 64;
  config.page_size = 8;
  config.num_pages = 256;
  return config;
}

std::vector<Completion> RunAll(Engine& engine, std::vector<Request> requests) {
  std::vector<uint64_t> order;
  for (Request& request : requests) {
    order.push_back(request.id);
    EXPECT_EQ(engine.Submit(std::move(request)), "");
  }
  std::map<uint64_t, Completion> by_id;
  std::vector<Completion> finished;
  while (by_id.size() < order.size()) {
    if (!engine.Step(finished)) {
      ADD_FAILURE() << "the engine has nothing to do, and " << order.size() - by_id.size()
                    << " are missing";
      break;
    }
    for (Completion& c : finished) {
      const uint64_t id = c.id;
      EXPECT_TRUE(by_id.emplace(id, std::move(c)).second) << "request " << id << " finished twice";
    }
    finished.clear();
  }
  std::vector<Completion> completions;
  for (uint64_t id : order) completions.push_back(std::move(by_id[id]));
  return completions;
}

Request ToyRequest(uint64_t id, int length, int max_tokens, uint64_t seed) {
  Request request;
  request.id = id;
  uint64_t state = seed * 1000003 + 17;
  for (int i = 0; i < length; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    request.prompt.push_back(3 + static_cast<int32_t>((state >> 33) % 94));
  }
  request.sampling.max_tokens = max_tokens;
  request.sampling.seed = CompletionSeed(seed, id, 0);
  request.sampling.ignore_eos = true;
  return request;
}

CommitResult UpdateWeights(ToyEngine& toy, PolicyVersion version, uint64_t seed,
                           InFlightPolicy policy) {
  const SchedulerLock lock = toy.engine->Lock();
  toy.store->FillRandom(seed);
  return toy.engine->Commit(lock, version, policy);
}

}  // namespace rollcast::testing
