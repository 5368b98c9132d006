#include <iostream>
#include <memory>

#include "launch/commands.h"
#include "launch/explain_command.h"

namespace rollcast {

Command ExplainCommand() {
  const auto options = std::make_shared<ExplainOptions>();
  Command command;
  command.name = "explain";
  command.summary = "show which kernel each op of a decode step takes, and why";
  command.details =
      "Reads tables and sizes alone: no weights, and no GPU for --device cuda. A kernel named with "
      "--set kernels.linear=...,\n"
      "--set kernels.attention=... or in the environment (ROLLCAST_OPS=linear=generic,"
      "attention=whole) must fit, or the\n"
      "error says which condition failed. Shapes: smollm2-135m, qwen2.5-0.5b, qwen2.5-1.5b, "
      "qwen2.5-7b, qwen3-8b,\n"
      "llama-3.1-8b.";
  command.options = {
      ForKey("--model", "model.path"),
      Optional("--shape", &options->shape, "a model shape by name instead of --model"),
      Optional("--batch", &options->batch, "sequences of the step"),
      ForKey("--context", "engine.max_context"),
      ForKey("--device", "kernels.device"),
      Optional("--arch", &options->arch, "sm_90a or sm_80, for --device cuda (default sm_90a)")};
  command.takes_config = true;
  command.run = [options](const Config& config) { return RunExplain(config, *options, std::cout); };
  return command;
}

}  // namespace rollcast
