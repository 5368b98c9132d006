#include <memory>

#include "launch/bench_command.h"
#include "launch/commands.h"

namespace rollcast {

Command BenchCommand() {
  const auto options = std::make_shared<BenchOptions>();
  Command command;
  command.name = "bench";
  command.summary = "time decode, prefill, a rollout or weight updates";
  command.details =
      "bench decode   ms of a decode step, log-probabilities included, against the floor of memory "
      "and tensor cores\n"
      "bench prefill  prompt tokens a second\n"
      "bench rollout  requests with prompt and output lengths uniform in 100..1024\n"
      "bench sync     weight updates while --batch sequences decode: mpirun -np 2 rollcast bench "
      "sync; rank 0 is the "
      "trainer,\n               [sync] mode and transport say how; tokens/s before, during and "
      "after\n"
      "Shapes: smollm2-135m, qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b, qwen3-8b, llama-3.1-8b. One "
      "JSON line each; the\n"
      "floor is that of an H200 (4.3 TB/s, 790 TFLOP/s bf16).";
  command.options = {
      Required("what", &options->what, "decode, prefill, rollout or sync"),
      Optional("--shape", &options->shape, StrCat("model shape; default ", options->shape)),
      Optional("--model", &options->model, "a model folder in place of random weights"),
      Optional("--batch", &options->batch, "sequences"),
      Optional("--context", &options->context, "mean context, or tokens of a prompt"),
      Optional("--steps", &options->steps, "timed steps of a repeat"),
      Optional("--repeats", &options->repeats, "repeats; the median is reported"),
      Optional("--updates", &options->updates, "timed weight updates of bench sync"),
      Optional("--requests", &options->requests, "requests of a rollout"),
      Optional("--temperature", &options->temperature, "0 = greedy")};
  command.on_ranks = true;
  command.takes_config = true;
  command.run = [options](const Config& config) { return RunBench(config, *options); };
  return command;
}

}  // namespace rollcast
