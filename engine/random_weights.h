// Seeded random weights for toy models and benchmarks.
#pragma once

#include <cstdint>
#include <span>

#include "engine/model_config.h"
#include "engine/weight_store.h"

namespace rollcast {

/// Elements [begin, begin + out.size()) of `entry`: a pure function of seed, name and index, scaled
/// so that a deep model stays finite. A head untied from the embedding equals it.
void RandomWeights(const ModelConfig& config, const ManifestEntry& entry, uint64_t seed,
                   int64_t begin, std::span<float> out);

}  // namespace rollcast
