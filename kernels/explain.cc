#include "kernels/explain.h"

#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/families.h"
#include "kernels/cuda/families.h"

namespace rollcast {

namespace {

using cuda::Epilogue;

struct Product {
  const char* op;
  const char* what;
  int N, K;
  Epilogue epilogue;
};

/// The products of a step in order; attention stands between the first and the second.
std::vector<Product> ProductsOf(const StepSizes& s) {
  const int q = s.num_heads * s.head_dim, kv = s.num_kv_heads * s.head_dim;
  return {{"AttentionInput", "q, k, v", q + 2 * kv, s.hidden, Epilogue::kStore},
          {"ProjectAdd", "o", s.hidden, q, Epilogue::kAdd},
          {"MlpInput", "gate, up", 2 * s.intermediate, s.hidden, Epilogue::kGated},
          {"ProjectAdd", "down", s.hidden, s.intermediate, Epilogue::kAdd},
          {"HeadSample", "head", s.vocab, s.hidden, Epilogue::kStore}};
}

/// The ops of a step, with products and attention told by the device.
template <class OfProduct, class OfAttention>
std::vector<KernelUse> Uses(const StepSizes& sizes, OfProduct of_product,
                            OfAttention of_attention) {
  std::vector<KernelUse> uses;
  const auto only = [&](const char* op, const char* what) {
    uses.push_back({op, what, 0, 0, "", "", {}});
  };
  only("Embed", "token ids to hidden");
  for (const Product& p : ProductsOf(sizes)) {
    KernelUse use{p.op, p.what, p.N, p.K, "", "", {}};
    of_product(p, use);
    uses.push_back(std::move(use));
    if (std::string_view(p.op) != "AttentionInput") continue;
    KernelUse attention{"Attention", "q against paged KV", 0, 0, "", "", {}};
    of_attention(attention);
    uses.push_back(std::move(attention));
  }
  only("HeadSample", "draw, log-probabilities");
  only("Advance", "next tokens, stop flags");
  return uses;
}

Explanation ExplainCpu(const BackendOptions& options, const StepSizes& sizes) {
  const cpu::CpuAxes processor = cpu::ThisProcessor();
  const cpu::CpuKernels kernels = cpu::ChooseKernels(options, processor);
  const auto tell = [&](const KernelChoice<cpu::CpuAxes>& choice, KernelUse& use) {
    const int chosen = choice.Choose(processor);
    use.kernel = cpu::FamilyOf("isa").name(chosen);
    use.passed_over = choice.PassedOverFor(chosen, processor);
  };
  Explanation out;
  out.device = "cpu, this processor";
  out.uses = Uses(
      sizes,
      [&](const Product& p, KernelUse& use) {
        tell(kernels.linear, use);
        const int columns = p.epilogue == Epilogue::kGated ? p.N / 2 : p.N;
        use.cut = StrCat("tasks of ", cpu::PartColumns(columns, sizes.batch), " columns");
      },
      [&](KernelUse& use) {
        tell(kernels.attention, use);
        use.cut = StrCat("slices of ", cpu::kAttentionSlice, " tokens");
      });
  return out;
}

Explanation ExplainCuda(const BackendOptions& options, const StepSizes& sizes,
                        const std::string& arch_name) {
  const cuda::CudaArch arch = cuda::ArchByName(arch_name);
  const Profile profile = ParseProfile(options.profile);
  const KernelChoice<cuda::LinearAxes> linear(cuda::LinearFamily(), profile, options.linear);
  const KernelChoice<cuda::AttentionAxes> attention(cuda::AttentionFamily(), profile,
                                                    options.attention);
  Explanation out;
  out.device = StrCat("cuda, ", arch.name, " (", arch.multiprocessors, " multiprocessors, as an ",
                      arch.device, ")");
  out.in_this_build = BuildHasCuda();
  out.uses = Uses(
      sizes,
      [&](const Product& p, KernelUse& use) {
        const bool head = std::string_view(p.op) == "HeadSample";
        const int rows = head ? std::min(sizes.batch, cuda::kSampleBlock) : sizes.batch;
        const cuda::LinearAxes axes{rows, p.N, p.K, p.epilogue, true, true, arch.wgmma};
        const int chosen = linear.Choose(axes);
        use.kernel = cuda::LinearFamily().name(chosen);
        use.passed_over = linear.PassedOverFor(chosen, axes);
        if (chosen == cuda::kLinearGeneric) {
          use.cut = "a warp 8 rows of w and 16 tokens";
          return;
        }
        const cuda::LinearTiling tiling = cuda::ChooseTiling(rows, p.N, p.K, p.epilogue);
        const cuda::LinearPlan plan = cuda::PlanLinear(tiling, rows, p.N, p.K);
        use.cut = StrCat("tile ", 64 * tiling.warpgroups, " x ", tiling.token_tile, ", ",
                         tiling.split == 1 ? std::string("K whole")
                                           : StrCat("K over clusters of ", tiling.split),
                         ", ", plan.ctas, " CTAs, ", plan.stages, " stages (",
                         (plan.shared_bytes + 1023) / 1024, " KiB)");
      },
      [&](KernelUse& use) {
        const cuda::AttentionAxes axes{sizes.batch,      sizes.num_heads,   sizes.num_kv_heads,
                                       sizes.head_dim,   sizes.max_context, arch.multiprocessors,
                                       arch.shared_bytes};
        const int chosen = attention.Choose(axes);
        use.kernel = cuda::AttentionFamily().name(chosen);
        use.passed_over = attention.PassedOverFor(chosen, axes);
        use.cut =
            chosen == cuda::kAttentionSplit
                ? StrCat("slices of ", cuda::kAttentionSlice, " tokens over ",
                         cuda::SplitCtas(arch.multiprocessors), " CTAs, then folded")
                : StrCat(sizes.batch * sizes.num_kv_heads, " CTAs, one a sequence and KV head");
      });
  return out;
}

}  // namespace

Explanation ExplainDecode(const BackendOptions& options, const StepSizes& sizes,
                          const std::string& arch) {
  return TakesCuda(options) ? ExplainCuda(options, sizes, arch) : ExplainCpu(options, sizes);
}

}  // namespace rollcast
