// Reference outputs of tests/data/golden/NAME, as tests/data/make_golden.py writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace rollcast::testing {

struct GoldenPrompt {
  std::vector<int32_t> ids;            // [T]
  std::vector<float> logits;           // [T, vocab] teacher-forced
  std::vector<int32_t> greedy_ids;     // [24] continuation of ids
  std::vector<float> greedy_logprobs;  // [24] log softmax of the raw logits
};

/// The folder of the golden checkpoint `name`.
std::filesystem::path GoldenDir(const std::string& name);

/// Every golden checkpoint that has reference outputs.
std::vector<std::string> GoldenNames();

/// Reads GoldenDir(name)/golden.h5. Throws Error naming the file and dataset.
std::vector<GoldenPrompt> ReadGolden(const std::string& name);

}  // namespace rollcast::testing
