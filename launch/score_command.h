// `rollcast score`: teacher-forced log-probabilities of token lists.
#pragma once

#include <filesystem>

#include "launch/config.h"

namespace rollcast {

struct ScoreOptions {
  std::filesystem::path input;   // JSONL, rows {"tokens": [...]}
  std::filesystem::path output;  // HDF5: row_i/logprob_raw [T - 1], row_i/logits [T, vocab]
  bool logits = false;
  bool overwrite = false;
};

/// One group row_i a row of the input, counted from 0; empty lines are passed over. logprob_raw[j]
/// is of tokens[j + 1] given those before it, at temperature 1. The output appears complete or not
/// at all. Returns the exit status; bad input is an Error that names the file and the line.
int RunScore(const Config& config, const ScoreOptions& options);

}  // namespace rollcast
