// `rollcast tokenize`: text to token ids and back, row by row.
#pragma once

#include <filesystem>

namespace rollcast {

struct TokenizeOptions {
  std::filesystem::path tokenizer;  // tokenizer.json or the folder that holds one
  std::filesystem::path input;      // JSONL, rows {"text": ...}
  std::filesystem::path output;     // JSONL, rows {"ids", "decoded", "decoded_skip_special"}
  bool add_special_tokens = false;
  bool overwrite = false;  // replace an earlier output; else it is an error
};

/// Writes one row for each row of the input, in order; empty lines are passed over. The output
/// appears complete or not at all; a pipe, a terminal or another device is written as it comes.
/// Returns the exit status; bad input is an Error that names the file and the line.
int RunTokenize(const TokenizeOptions& options);

}  // namespace rollcast
