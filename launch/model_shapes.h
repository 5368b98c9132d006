// Real model shapes by name, for benchmarks on random weights, and the floor of a decode step.
#pragma once

#include <string>
#include <vector>

#include "engine/model_config.h"

namespace rollcast {

/// "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen3-8b", "llama-3.1-8b", "smollm2-135m". Throws
/// Error that lists them when `name` is none.
ModelConfig ShapeByName(const std::string& name);
std::vector<std::string> ShapeNames();

/// What the hardware can do: bytes/s of device memory and bf16 FLOP/s of the tensor cores.
struct Ceilings {
  double memory = 4.3e12;  // of an H200, measured
  double bf16 = 790e12;
};

/// Seconds below which a decode step of `batch` sequences with a mean context of `context` tokens
/// cannot go: every product as the larger of its weight bytes and its operations, and the KV read
/// once.
double DecodeFloor(const ModelConfig& model, int batch, double context, const Ceilings& ceilings);
/// The same for a prefill of `tokens` tokens in sequences of `context`: operations of products and
/// attention.
double PrefillFloor(const ModelConfig& model, int64_t tokens, double context,
                    const Ceilings& ceilings);

struct RolloutLengths {
  int prompt, output;  // tokens
};
/// The same for a whole rollout: the prefill of all prompts, and decode steps of up to
/// `max_running` sequences, each followed at once by the next.
double RolloutFloor(const ModelConfig& model, const std::vector<RolloutLengths>& requests,
                    int max_running, const Ceilings& ceilings);

}  // namespace rollcast
