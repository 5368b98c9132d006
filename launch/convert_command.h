// `rollcast convert`: makes a Hugging Face folder from a GGUF file, or a toy model from a seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace rollcast {

struct ConvertOptions {
  std::filesystem::path input;       // a GGUF file of the llama architecture
  std::filesystem::path output;      // the folder to make; must not exist, or be empty
  std::optional<uint64_t> toy_seed;  // set: no input, a toy model of this seed
};

/// Returns 0 when `output` is complete; the folder appears under its name only then. Throws Error
/// naming file, key or tensor, and Stopped after a signal (CatchSignals). Quantised weights are
/// dequantised in float32 and rounded to bfloat16; the whole model is held in memory.
int RunConvert(const ConvertOptions& options);

}  // namespace rollcast
