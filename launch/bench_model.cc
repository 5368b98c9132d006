#include "launch/bench_model.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/device_info.h"

namespace rollcast {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  RC_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t upper = values.size() / 2;
  return values.size() % 2 == 1 ? values[upper] : (values[upper - 1] + values[upper]) / 2;
}

void FillForTiming(WeightStore& store, uint64_t salt) {
  std::vector<uint16_t> block(size_t{8} << 20);
  std::mt19937_64 random(salt + 1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (uint16_t& x : block) {
    const float value = normal(random);
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    x = static_cast<uint16_t>(bits >> 16);
  }
  const std::vector<uint16_t> ones(size_t{1} << 16, 0x3f80);
  for (const ManifestEntry& entry : store.manifest().entries()) {
    if (entry.dtype != DType::kBF16) throw Error(StrCat("bench: ", entry.name, " is not bfloat16"));
    const bool norm = entry.name.find("norm") != std::string::npos;
    const std::vector<uint16_t>& source = norm ? ones : block;
    for (size_t at = 0; at < entry.bytes;) {
      const size_t piece = std::min(entry.bytes - at, source.size() * 2);
      store.backend().Upload(static_cast<char*>(store.live()) + entry.offset + at, source.data(),
                             piece);
      at += piece;
    }
  }
  store.backend().Synchronize();
}

Request RandomRequest(uint64_t id, int length, int max_tokens, double temperature, int vocab,
                      std::mt19937_64& random) {
  Request request;
  request.id = id;
  for (int i = 0; i < length; ++i) request.prompt.push_back(static_cast<int32_t>(random() % vocab));
  request.sampling.max_tokens = max_tokens;
  request.sampling.temperature = static_cast<float>(temperature);
  request.sampling.ignore_eos = true;
  request.sampling.seed = id;
  return request;
}

void SubmitOrThrow(Engine& engine, Request request) {
  if (const std::string reason = engine.Submit(std::move(request)); !reason.empty())
    throw Error(StrCat("bench: ", reason));
}

nlohmann::ordered_json BenchHead(const std::string& what, const BenchOptions& options,
                                 const Backend& backend) {
  nlohmann::ordered_json json;
  json["bench"] = what;
  if (options.model.empty())
    json["shape"] = options.shape;
  else
    json["model"] = options.model;
  json["device"] = backend.name();
  const DeviceInfo info = DescribeDevice(backend.device());
  if (!info.runtime.empty()) {
    json["cuda"] = info.runtime;
    json["driver"] = info.driver;
    json["sm_clock_mhz"] = info.sm_clock_mhz;
    json["memory_clock_mhz"] = info.memory_clock_mhz;
  }
  json["rollcast"] = ROLLCAST_VERSION;
  json["temperature"] = options.temperature;
  json["logprobs"] = true;
  return json;
}

}  // namespace rollcast
