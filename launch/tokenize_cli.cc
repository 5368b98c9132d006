#include <memory>

#include "launch/commands.h"
#include "launch/tokenize_command.h"

namespace rollcast {

Command TokenizeCommand() {
  auto options = std::make_shared<TokenizeOptions>();
  return {.name = "tokenize",
          .summary = "text to token ids and back, row by row",
          .details =
              "Rows {\"text\"} become rows {\"ids\", \"decoded\", "
              "\"decoded_skip_special\"} in the same order.",
          .options = {Required("--tokenizer", &options->tokenizer,
                               "tokenizer.json or the folder that holds one"),
                      Required("--input", &options->input, "JSONL file; - = standard input"),
                      Required("--output", &options->output,
                               "JSONL file, a pipe or a terminal; - = standard output"),
                      Optional("--overwrite", &options->overwrite, "replace an earlier output"),
                      Optional("--add-special-tokens", &options->add_special_tokens,
                               "put the tokenizer's own special tokens (such as bos) around it")},
          .run = [options](const Config&) { return RunTokenize(*options); }};
}

}  // namespace rollcast
