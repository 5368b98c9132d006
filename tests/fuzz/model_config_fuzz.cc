// Any text must give a configuration with finite constants, or an Error.
#include <cmath>
#include <cstdint>
#include <string>

#include "engine/model_config.h"
#include "kernels/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto config =
        rollcast::ModelConfig::Parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    RC_CHECK(config.rms_eps > 0 && std::isfinite(config.rms_eps), config.rms_eps);
    RC_CHECK(std::isfinite(config.attention_scale), config.attention_scale);
    for (const float inv_freq : config.rope.inv_freq) RC_CHECK(std::isfinite(inv_freq), inv_freq);
  } catch (const rollcast::Error&) {
  }
  return 0;
}
