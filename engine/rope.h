// Rotary frequencies of every supported rope type.
#pragma once

#include <string>

#include "engine/model_config.h"

namespace rollcast {

/// The constants of config.json that decide the frequencies, after names and defaults have been
/// resolved. The formulas are those of transformers 5 (`modeling_rope_utils.py`), float32 where it
/// is.
struct RopeParameters {
  enum class Type : uint8_t { kDefault, kLinear, kLlama3, kYarn };

  Type type = Type::kDefault;
  int rotary_dim = 0;  // even, >= 2
  double theta = 10000;
  double factor = 1;            // linear, llama3, yarn
  double original_context = 0;  // tokens the model was first trained with; llama3, yarn
  double low_freq_factor = 1;   // llama3
  double high_freq_factor = 4;
  double attention_factor = 0;  // yarn; 0 = from factor and the two mscales
  double mscale = 0;            // 0 = not given
  double mscale_all_dim = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // round the bounds of the ramp outwards
};

/// Pure function of `parameters`.
RopeConfig MakeRope(const RopeParameters& parameters);

}  // namespace rollcast
