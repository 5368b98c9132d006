#include "launch/bench_command.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/engine.h"
#include "launch/bench_model.h"
#include "launch/bench_sync.h"
#include "launch/model_shapes.h"
#include "launch/runtime.h"

namespace rollcast {

namespace {

using Json = nlohmann::ordered_json;
using std::chrono::steady_clock;

class Bench {
 public:
  Bench(const Config& config, const BenchOptions& options)
      : config_(config),
        options_(options),
        backend_(MakeBackend(config.kernels)),
        store_(
            options.model.empty() ? ShapeByName(options.shape) : ModelConfig::Load(options.model),
            *backend_) {
    if (options.model.empty())
      FillForTiming(store_, 0);
    else
      store_.LoadCheckpoint(options.model);
  }

  void Decode() {
    const int batch = options_.batch, steps = options_.steps, warm = 16;
    const int total = 2 * warm + steps * options_.repeats;
    const int prompt = std::max(1, options_.context - total / 2);
    Engine& engine = MakeEngine(batch, prompt + total + 65 + batch);
    std::mt19937_64 random(2);
    for (int i = 0; i < batch; ++i)
      SubmitOrThrow(engine, RandomRequest(i + 1, prompt, total + 64 + batch, options_.temperature,
                                          vocab(), random));
    std::vector<Completion> finished;
    const auto decoded = [&] { return engine.stats().decode_tokens; };
    for (int64_t before = -1, now = 0; now - before != batch;
         now = decoded()) {  // until all are prefilled
      before = now;
      engine.Step(finished);
    }
    for (int i = 0; i < warm; ++i) engine.Step(finished);
    std::vector<double> wall, host;
    for (int r = 0; r < options_.repeats; ++r) {
      const EngineStats before = engine.stats();
      const auto start = steady_clock::now();
      for (int i = 0; i < steps; ++i) engine.Step(finished);
      wall.push_back(SecondsSince(start) / steps);
      const EngineStats after = engine.stats();
      RC_CHECK_EQ(after.decode_tokens - before.decode_tokens, int64_t{batch} * steps);
      host.push_back(HostSecondsAStep(before, after));
    }
    if (!finished.empty()) throw Error("bench: a sequence finished while it was timed");
    const double floor = DecodeFloor(store_.config(), batch, prompt + total / 2, {}) * 1e3;
    Json j = BenchHead("decode", options_, *backend_);
    j["batch"] = batch;
    j["context"] = prompt + total / 2;
    SetTimes(j, wall);
    j["tokens_per_s"] = batch / Median(wall);
    SetFloor(j, floor);
    j["host_us"] = Median(host) * 1e6;
    if (!on_cpu()) j["graph"] = engine.stats().graph_replays > 0;
    std::cout << j.dump() << std::endl;
  }

  void Prefill() {
    Engine& engine = MakeEngine(options_.batch, options_.context + 2);
    std::mt19937_64 random(2);
    std::vector<double> wall, host;
    std::vector<Completion> finished;
    for (int r = 0; r < options_.repeats + 1; ++r) {
      for (int i = 0; i < options_.batch; ++i)
        SubmitOrThrow(engine, RandomRequest(r * 1000 + i + 1, options_.context, 1,
                                            options_.temperature, vocab(), random));
      const EngineStats before = engine.stats();
      const auto start = steady_clock::now();
      while (finished.size() < static_cast<size_t>(options_.batch)) engine.Step(finished);
      if (r > 0) {  // the first warms up
        wall.push_back(SecondsSince(start));
        host.push_back(HostSecondsAStep(before, engine.stats()));
      }
      finished.clear();
    }
    const int64_t tokens = int64_t{options_.batch} * options_.context;
    const double floor = PrefillFloor(store_.config(), tokens, options_.context, {}) * 1e3;
    Json j = BenchHead("prefill", options_, *backend_);
    j["batch"] = options_.batch;
    j["context"] = options_.context;
    SetTimes(j, wall);
    j["tokens_per_s"] = tokens / Median(wall);
    SetFloor(j, floor);
    j["host_us"] = Median(host) * 1e6;
    std::cout << j.dump() << std::endl;
  }

  void Rollout() {
    Engine& engine = MakeEngine(std::min(options_.requests, 256), 2056);
    std::mt19937_64 random(0);
    std::uniform_int_distribution<int> length(100, 1024);
    int64_t prompts = 0, outputs = 0;
    std::vector<RolloutLengths> lengths;
    for (int i = 0; i < options_.requests; ++i) {
      const int prompt = length(random), output = length(random);
      prompts += prompt;
      outputs += output;
      lengths.push_back({prompt, output});
      SubmitOrThrow(engine,
                    RandomRequest(i + 1, prompt, output, options_.temperature, vocab(), random));
    }
    std::vector<Completion> finished;
    const auto start = steady_clock::now();
    while (finished.size() < static_cast<size_t>(options_.requests)) engine.Step(finished);
    const std::vector<double> wall = {SecondsSince(start)};
    const EngineStats stats = engine.stats();
    Json j = BenchHead("rollout", options_, *backend_);
    j["requests"] = options_.requests;
    j["prompt_tokens"] = prompts;
    j["output_tokens"] = outputs;
    SetTimes(j, wall);
    j["tokens_per_s"] = outputs / wall.front();
    SetFloor(j, RolloutFloor(store_.config(), lengths, engine.config().max_running, {}) * 1e3);
    j["steps"] = stats.steps;
    j["preemptions"] = stats.preemptions;
    j["host_us"] = HostSecondsAStep({}, stats) * 1e6;
    std::cout << j.dump() << std::endl;
  }

 private:
  int vocab() const { return store_.config().vocab_size; }

  Engine& MakeEngine(int sequences, int context) {
    if (const int most = store_.config().max_context; context > most)
      throw Error(StrCat("bench ", options_.what, ": needs a context of ", context,
                         " tokens, and this model allows ", most,
                         options_.what == "rollout" ? "" : "; lower --context or --steps"));
    EngineConfig config = config_.engine;
    config.max_running = sequences;
    config.max_batched_tokens = std::max(config.max_batched_tokens, sequences);
    config.max_context = (context + config.page_size - 1) / config.page_size * config.page_size;
    config.num_pages = (config.max_context / config.page_size + 1) * sequences;
    config.prefix_cache = false;
    engine_ = std::make_unique<Engine>(store_, config);
    return *engine_;
  }

  static void SetTimes(Json& j, const std::vector<double>& seconds) {
    j["ms"] = Median(seconds) * 1e3;
    j["ms_min"] = *std::min_element(seconds.begin(), seconds.end()) * 1e3;
    j["ms_max"] = *std::max_element(seconds.begin(), seconds.end()) * 1e3;
  }

  static double HostSecondsAStep(const EngineStats& before, const EngineStats& after) {
    return (after.step_s - before.step_s - (after.wait_s - before.wait_s)) /
           static_cast<double>(after.steps - before.steps);
  }

  // The floor is that of an H200; on a processor it means nothing.
  void SetFloor(Json& j, double floor_ms) const {
    if (on_cpu()) return;
    j["floor_ms"] = floor_ms;
    j["fraction_of_floor"] = floor_ms / j["ms"].get<double>();
  }
  bool on_cpu() const { return backend_->name().starts_with("cpu"); }

  const Config& config_;
  const BenchOptions& options_;
  std::unique_ptr<Backend> backend_;
  WeightStore store_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace

int RunBench(const Config& config, const BenchOptions& options) {
  if (options.batch < 1 || options.context < 2 || options.steps < 1 || options.repeats < 1 ||
      options.requests < 1)
    throw Error(
        "bench: --batch, --steps, --repeats and --requests must be at least 1, --context at least "
        "2");
  if (options.what != "sync") RequireOneProcess("bench " + options.what);
  if (options.what == "decode")
    Bench(config, options).Decode();
  else if (options.what == "prefill")
    Bench(config, options).Prefill();
  else if (options.what == "rollout")
    Bench(config, options).Rollout();
  else if (options.what == "sync")
    return RunBenchSync(config, options);
  else
    throw Error(StrCat("bench ", options.what, ": known are decode, prefill, rollout and sync"));
  return 0;
}

}  // namespace rollcast
