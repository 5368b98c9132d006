#include "engine/random_weights.h"

#include <xxhash.h>

#include <cmath>
#include <string>

namespace rollcast {
namespace {

/// Uniform in [-1, 1), a pure function of its arguments (SplitMix64's mixing function).
float Noise(uint64_t key, uint64_t index) {
  uint64_t x = key + (index + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  x ^= x >> 31;
  return static_cast<float>(x >> 40) * 0x1p-23f - 1.0f;
}

}  // namespace

void RandomWeights(const ModelConfig& config, const ManifestEntry& entry, uint64_t seed,
                   int64_t begin, std::span<float> out) {
  const bool copies_embedding = config.tied_head && entry.name == "lm_head.weight";
  const std::string name = copies_embedding ? "model.embed_tokens.weight" : entry.name;
  const float mean = name.find("norm") != std::string::npos ? 1.0f : 0.0f;
  // Rows of unit variance keep activations at their scale; what is added to the residual shrinks
  // with depth, so that the sum stays finite however many layers there are.
  float scale =
      entry.shape.rank() == 2 ? std::sqrt(3.0f / static_cast<float>(entry.shape[1])) : 0.1f;
  if (name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight"))
    scale /= std::sqrt(2.0f * static_cast<float>(config.num_layers));
  const uint64_t key = XXH3_64bits_withSeed(name.data(), name.size(), seed);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = mean + scale * Noise(key, static_cast<uint64_t>(begin) + i);
}

}  // namespace rollcast
