// A tiny Llama with seeded random weights and a byte-level tokenizer, for where no real model is at
// hand.
#pragma once

#include <cstdint>
#include <filesystem>

namespace rollcast {

/// Writes the Hugging Face folder `dir` (config, weights, tokenizer, chat template). Equal seeds
/// give equal files. Throws Error when `dir` exists and is not empty, or cannot be written.
void MakeToyModel(const std::filesystem::path& dir, uint64_t seed);

}  // namespace rollcast
