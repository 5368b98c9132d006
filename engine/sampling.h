// How the tokens of one completion are drawn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rollcast {

/// Plain data. Limits are checked by Validate; the engine refuses what it rejects.
struct SamplingParams {
  int max_tokens = 128;             // >= 1
  int min_tokens = 0;               // stop ids and stop strings do not count before
  float temperature = 1.0f;         // in [0, 1e-6): greedy
  float top_p = 1.0f;               // (0, 1]; 1 = off
  int top_k = -1;                   // -1 or 0 = off
  float min_p = 0.0f;               // [0, 1]; 0 = off
  float repetition_penalty = 1.0f;  // (0, 2]; 1 = off
  float frequency_penalty = 0.0f;   // [-2, 2]
  float presence_penalty = 0.0f;    // [-2, 2]
  std::vector<int32_t> stop_ids;    // added to the model's end-of-sequence ids
  std::vector<std::string> stop_strings;
  bool ignore_eos = false;  // the model's own end-of-sequence ids do not stop
  uint64_t seed = 0;

  bool operator==(const SamplingParams&) const = default;
};

/// Empty when `params` are in range; else one line that names the field, its value and its range.
/// `vocab_size` > 0: stop ids must be below.
std::string Validate(const SamplingParams& params, int32_t vocab_size = 0);

/// The seed of one completion: a function of these three alone (SplitMix64 steps, Steele et al.
/// 2014).
uint64_t CompletionSeed(uint64_t run_seed, uint64_t prompt_id, uint64_t sample_index);

}  // namespace rollcast
