#include <iostream>
#include <memory>

#include "launch/commands.h"
#include "launch/replay_command.h"

namespace rollcast {

Command ReplayCommand() {
  const auto options = std::make_shared<ReplayOptions>();
  Command command;
  command.name = "replay";
  command.summary = "generate trajectories again and compare the bits";
  command.details =
      "Generates the rows of FILE that were drawn wholly under one policy version again, from the "
      "weights in --model,\n"
      "their seeds and prompt ids, and compares tokens and log-probabilities bit for bit. Exit "
      "status 1 when one differs.\n"
      "A job with model.untie_head = true is replayed with the same setting.";
  command.options = {
      Required("file", &options->file, "trajectory file"), ForKey("--model", "model.path"),
      Optional("--version", &options->version, "policy version of the weights in --model"),
      Optional("--limit", &options->limit, "rows at most; -1 = all")};
  command.takes_config = true;
  command.needs = {{"model.path"}};
  command.run = [options](const Config& config) { return RunReplay(config, *options, std::cout); };
  return command;
}

}  // namespace rollcast
