#include <unistd.h>

#include <memory>
#include <optional>

#include "launch/commands.h"
#include "launch/generate_command.h"
#include "trainer_bridge/mpi_communicator.h"

namespace rollcast {

constexpr uint64_t kShownOnTerminal = 5;

Command GenerateCommand() {
  auto show = std::make_shared<std::optional<uint64_t>>();
  Command command;
  command.name = "generate";
  command.summary = "completions of a prompt file, without a trainer";
  command.details =
      "Completes every prompt --group-size times, scores them, and writes a trajectory file:\n"
      "  rollcast generate --model DIR --prompts F.jsonl --output F.h5\n"
      "  mpirun -np N rollcast generate ...\n"
      "The result does not depend on the number of ranks. Stopped by SIGINT or SIGTERM, it writes "
      "what is\n"
      "finished, and the rest as aborted with the tokens that there are; a second signal ends it "
      "at "
      "once.\n"
      "`rollcast inspect F.h5 --jsonl` prints all texts.\n"
      "\n"
      "A prompt is one JSON object a line, with these keys and no others:\n"
      "  text      the prompt as it is; or\n"
      "  tokens    its token ids; or\n"
      "  messages  [{\"role\", \"content\"}, ...], rendered with the model's chat template\n"
      "  id        a text or an integer, once in a file; default: the number of the line\n"
      "  answer    a text or a number, for the scorer\n"
      "  sampling  {...}: keys of the table [sampling] and \"seed\", for this prompt alone\n"
      "  metadata  any value, handed to a command or http scorer as it is";
  command.options = {
      ForKey("--model", "model.path"),
      ForKey("--prompts", "rollout.prompts"),
      ForKey("-o,--output", "rollout.output"),
      ForKey("--group-size", "rollout.group_size"),
      ForKey("--seed", "rollout.seed"),
      ForKey("--max-tokens", "sampling.max_tokens"),
      ForKey("--temperature", "sampling.temperature"),
      ForKey("--top-p", "sampling.top_p"),
      ForKey("--top-k", "sampling.top_k"),
      ForKey("--min-p", "sampling.min_p"),
      ForKey("--ignore-eos", "sampling.ignore_eos"),
      ForKey("--overwrite", "rollout.overwrite"),
      Optional("--show", show.get(),
               "completions to print at the end; default 5 on a terminal, else and under "
               "mpirun 0")};
  command.on_ranks = true;
  command.takes_config = true;
  command.defaults.rollout.group_size = 1;
  command.needs = {{"model.path"}, {"rollout.prompts"}, {"rollout.output", /*may_be_empty=*/true}};
  command.run = [show](const Config& config) {
    // mpirun gives its ranks a terminal whatever its own output is.
    const bool on_terminal = isatty(STDOUT_FILENO) == 1 && !MpiSession::Launched();
    return RunGenerate(config, show->value_or(on_terminal ? kShownOnTerminal : 0));
  };
  return command;
}

}  // namespace rollcast
