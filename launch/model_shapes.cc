#include "launch/model_shapes.h"

#include <algorithm>

namespace rollcast {

namespace {

struct NamedShape {
  const char* name;
  const char* type;
  int layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, max_context;
  bool tied;
  double theta;
};

// From the config.json of the published checkpoints.
constexpr NamedShape kShapes[] = {
    {"smollm2-135m", "llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, true, 1e5},
    {"qwen2.5-0.5b", "qwen2", 24, 896, 4864, 14, 2, 64, 151936, 32768, true, 1e6},
    {"qwen2.5-1.5b", "qwen2", 28, 1536, 8960, 12, 2, 128, 151936, 32768, true, 1e6},
    {"qwen2.5-7b", "qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 32768, false, 1e6},
    {"qwen3-8b", "qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, false, 1e6},
    {"llama-3.1-8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 131072, false, 5e5},
};

/// Products of a step as (N, K), all layers and the head.
template <class Visit>
void ForEachProduct(const ModelConfig& m, Visit visit) {
  const double layers = m.num_layers;
  visit(layers, m.qkv_rows(), m.hidden_size);
  visit(layers, m.hidden_size, m.q_rows());
  visit(layers, 2 * m.intermediate_size, m.hidden_size);
  visit(layers, m.hidden_size, m.intermediate_size);
  visit(1.0, m.vocab_size, m.hidden_size);
}

}  // namespace

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const NamedShape& s : kShapes) names.push_back(s.name);
  return names;
}

ModelConfig ShapeByName(const std::string& name) {
  std::string known;
  for (const NamedShape& s : kShapes) {
    known += StrCat(known.empty() ? "" : ", ", s.name);
    if (name != s.name) continue;
    return ModelConfig::Parse(
        StrCat(R"({"model_type": ")", s.type, R"(", "hidden_size": )", s.hidden,
               R"(, "intermediate_size": )", s.intermediate, R"(, "num_hidden_layers": )", s.layers,
               R"(, "num_attention_heads": )", s.heads, R"(, "num_key_value_heads": )", s.kv_heads,
               R"(, "head_dim": )", s.head_dim, R"(, "vocab_size": )", s.vocab,
               R"(, "max_position_embeddings": )", s.max_context, R"(, "rope_theta": )", s.theta,
               R"(, "tie_word_embeddings": )", s.tied ? "true" : "false",
               R"(, "rms_norm_eps": 1e-6, "hidden_act": "silu", "torch_dtype": "bfloat16"})"),
        name);
  }
  throw Error(StrCat("--shape ", name, ": known are ", known));
}

double DecodeFloor(const ModelConfig& m, int batch, double context, const Ceilings& c) {
  double seconds = 0;
  ForEachProduct(m, [&](double count, double n, double k) {
    seconds += count * std::max(2 * n * k / c.memory, 2 * batch * n * k / c.bf16);
  });
  const double kv = 2.0 * m.num_layers * m.kv_rows() * 2;
  return seconds + batch * context * kv / c.memory;
}

double PrefillFloor(const ModelConfig& m, int64_t tokens, double context, const Ceilings& c) {
  double flops = 0;
  ForEachProduct(m, [&](double count, double n, double k) {
    if (count > 1)
      flops += count * 2 * static_cast<double>(tokens) * n * k;  // the head: last tokens only
  });
  flops += 2.0 * static_cast<double>(tokens) * context * m.q_rows() *
           m.num_layers;  // causal: half of 4 S d
  return flops / c.bf16;
}

double RolloutFloor(const ModelConfig& m, const std::vector<RolloutLengths>& requests,
                    int max_running, const Ceilings& c) {
  double seconds = 0;
  for (const RolloutLengths& request : requests)
    seconds += PrefillFloor(m, request.prompt, request.prompt, c);
  struct Running {
    double context;
    int left;
  };
  std::vector<Running> running;
  size_t next = 0;
  while (true) {
    for (; next < requests.size() && running.size() < static_cast<size_t>(max_running); ++next)
      // The prefill draws the first token.
      if (requests[next].output > 1)
        running.push_back(
            {static_cast<double>(requests[next].prompt) + 1, requests[next].output - 1});
    if (running.empty()) return seconds;
    double context = 0;
    for (Running& sequence : running) {
      context += sequence.context++;
      --sequence.left;
    }
    const auto batch = static_cast<int>(running.size());
    seconds += DecodeFloor(m, batch, context / batch, c);
    std::erase_if(running, [](const Running& sequence) { return sequence.left == 0; });
  }
}

}  // namespace rollcast
