#include <memory>

#include "launch/commands.h"
#include "launch/score_command.h"

namespace rollcast {

Command ScoreCommand() {
  const auto options = std::make_shared<ScoreOptions>();
  Command command;
  command.name = "score";
  command.summary = "log-probabilities of given token lists";
  command.details =
      "Reads JSONL rows {\"tokens\": [...]} and writes an HDF5 file with one group row_i a row:\n"
      "logprob_raw [T - 1], natural log-probabilities of tokens[1..] at temperature 1, and with\n"
      "--logits also logits [T, vocab], both float32. The numbers are, bit for bit, those that\n"
      "decoding records.";
  command.options = {
      ForKey("--model", "model.path"),
      Required("--input", &options->input, "JSONL, rows {\"tokens\": [...]}; - = standard input"),
      Required("--output", &options->output, "HDF5 file to write"),
      Optional("--logits", &options->logits, "also write the logits"),
      Optional("--overwrite", &options->overwrite, "replace an HDF5 file of that name")};
  command.takes_config = true;
  command.needs = {{"model.path"}};
  command.run = [options](const Config& config) { return RunScore(config, *options); };
  return command;
}

}  // namespace rollcast
