#include "launch/commands.h"
#include "launch/generate_command.h"

namespace rollcast {

Command GenerateCommand() {
  Command command;
  command.name = "generate";
  command.summary = "completions of a prompt file, without a trainer";
  command.details =
      "Completes every prompt --group-size times, scores them, and writes a trajectory file:\n"
      "  rollcast generate --model DIR --prompts F.jsonl --output F.h5\n"
      "  mpirun -np N rollcast generate ...\n"
      "The result does not depend on the number of ranks. Prompts are JSONL rows {\"id\", "
      "\"text\"},\n"
      "{\"id\", \"tokens\"} or {\"id\", \"messages\"}, with an optional \"answer\" for the scorer.";
  command.options = {ForKey("--model", "model.path"),
                     ForKey("--prompts", "rollout.prompts"),
                     ForKey("-o,--output", "rollout.output"),
                     ForKey("--group-size", "rollout.group_size"),
                     ForKey("--seed", "rollout.seed"),
                     ForKey("--max-tokens", "sampling.max_tokens"),
                     ForKey("--temperature", "sampling.temperature"),
                     ForKey("--top-p", "sampling.top_p"),
                     ForKey("--top-k", "sampling.top_k"),
                     ForKey("--min-p", "sampling.min_p"),
                     ForKey("--overwrite", "rollout.overwrite")};
  command.takes_config = true;
  command.needs = {"model.path", "rollout.prompts", "rollout.output"};
  command.run = [](const Config& config) { return RunGenerate(config); };
  return command;
}

}  // namespace rollcast
