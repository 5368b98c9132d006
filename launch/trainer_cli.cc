#include "launch/commands.h"
#include "launch/trainer_command.h"

namespace rollcast {

Command TrainerCommand() {
  Command command;
  command.name = "trainer";
  command.summary = "the reference trainer: GRPO on the output head, beside rollout ranks";
  command.details =
      "Trains the final norm and the output head with the exact gradient, and publishes them to "
      "the\n"
      "rollout ranks after every step:\n"
      "  mpirun -np 1 rollcast trainer -c F : -np N rollcast worker -c F\n"
      "Ends with a table; the status is not 0 when the mean reward of the last updates is not\n"
      "above that of the first by trainer.min_reward_gain.";
  command.options = {ForKey("--model", "model.path"), ForKey("--prompts", "rollout.prompts"),
                     ForKey("-o,--output", "rollout.output"),
                     ForKey("--updates", "trainer.updates")};
  command.on_ranks = true;
  command.takes_config = true;
  command.needs = {{"model.path"}, {"rollout.prompts"}};
  command.run = [](const Config& config) { return RunTrainer(config); };
  return command;
}

}  // namespace rollcast
