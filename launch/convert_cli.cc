#include <memory>

#include "launch/commands.h"
#include "launch/convert_command.h"
#include "launch/signals.h"

namespace rollcast {

Command ConvertCommand() {
  auto options = std::make_shared<ConvertOptions>();
  return {.name = "convert",
          .summary = "make a Hugging Face folder from a GGUF file, or a toy model",
          .details =
              "Quantised weights are dequantised in float32 and rounded to bfloat16. The "
              "folder appears under its name only when it is complete.",
          .options = {Optional("--input", &options->input, "GGUF file of the llama architecture"),
                      Optional("--toy", &options->toy_seed,
                               "instead of --input: a tiny random model of this seed, with a "
                               "byte-level tokenizer"),
                      Required("--output", &options->output,
                               "the folder to make; must not exist, or be empty")},
          .run = [options](const Config&) {
            // It ends within a tensor or the writing of the file; a second signal would leave the
            // unfinished folder.
            CatchSignals(SecondSignal::kIsIgnored);
            return RunConvert(*options);
          }};
}

}  // namespace rollcast
