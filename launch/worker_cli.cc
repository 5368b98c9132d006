#include "launch/commands.h"
#include "launch/rollout_process.h"

namespace rollcast {

Command WorkerCommand() {
  Command command;
  command.name = "worker";
  command.summary = "a rollout rank beside a trainer, under mpirun";
  command.details =
      "Decodes, scores and takes weight updates until the trainer ends the job:\n"
      "  mpirun -np 1 rollcast trainer -c F : -np N rollcast worker -c F\n"
      "or beside a trainer of your own, written with trainer_bridge/python/rollcast:\n"
      "  mpirun -np 1 python train.py : -np N rollcast worker -c F\n"
      "The first rollout rank also hands out the prompts and writes the trajectory file.";
  command.options = {ForKey("--model", "model.path"), ForKey("-o,--output", "rollout.output")};
  command.on_ranks = true;
  command.takes_config = true;
  command.needs = {{"model.path"}};
  command.run = [](const Config& config) {
    return RunAsRank(config, Role::kWorker, [&](World& world, const Roles& roles) {
      if (roles.trainer() < 0)
        throw Error(
            "there is no trainer in this job; `rollcast generate` makes rollouts without one");
      RunRolloutRank(config, world, roles, nullptr);
      return 0;
    });
  };
  return command;
}

}  // namespace rollcast
