#include "launch/explain_command.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/explain.h"
#include "launch/model_shapes.h"

namespace rollcast {

int RunExplain(const Config& config, const ExplainOptions& options, std::ostream& out) {
  if (options.shape.empty() == config.model.path.empty())
    throw Error("explain: give either --shape NAME or --model DIR (model.path)");
  if (options.batch < 1)
    throw Error(fmt::format("explain: --batch must be at least 1, not {}", options.batch));
  const ModelConfig model =
      options.shape.empty() ? ModelConfig::Load(config.model.path) : ShapeByName(options.shape);
  const int context = config.engine.max_context > 0 ? config.engine.max_context : model.max_context;
  if (context > model.max_context)
    throw Error(fmt::format("explain: engine.max_context is {}; the model allows {}", context,
                            model.max_context));
  const StepSizes sizes{
      options.batch,   model.hidden_size,  model.intermediate_size, model.vocab_size,
      model.num_heads, model.num_kv_heads, model.head_dim,          context};
  const Explanation explanation = ExplainDecode(config.kernels, sizes, options.arch);

  out << fmt::format("{}: a decode step of {} sequences of up to {} tokens, {} layers\n",
                     options.shape.empty() ? config.model.path : options.shape, options.batch,
                     context, model.num_layers);
  out << fmt::format("device: {}\n", explanation.device);
  if (!explanation.in_this_build)
    out << "this build has no CUDA backend; a build with it would take:\n";
  const std::string& profile = config.kernels.profile;
  out << fmt::format("profile: {}{}\n\n", profile,
                     profile == "fastest" ? ", which has no kernels of its own: as invariant" : "");
  out << fmt::format("{:<15} {:<24} {:>14}  {:<9} {}\n", "op", "of", "N x K", "kernel",
                     "how it is cut");
  for (const KernelUse& use : explanation.uses) {
    out << fmt::format("{:<15} {:<24} {:>14}  ", use.op, use.what,
                       use.N > 0 ? fmt::format("{} x {}", use.N, use.K) : "");
    out << (use.kernel.empty() ? "-\n" : fmt::format("{:<9} {}\n", use.kernel, use.cut));
    for (const PassedOver& passed : use.passed_over)
      out << fmt::format("{:<15}   not {}: {}\n", "", passed.kernel, passed.reason);
  }
  out << "\n-: the op has one kernel. Tiles are rows of the weight x tokens. A step with prefill "
         "in "
         "it takes other tiles\n   (its rows are tokens), and attention whole.\n";
  out.flush();
  if (!out) throw Error("explain: the output cannot be written");
  return 0;
}

}  // namespace rollcast
