// Choosing kernels: the tables, names that are strict, profiles, and what is said of each.
#include "kernels/dispatch.h"

#include <gtest/gtest.h>

#include "kernels/cpu/families.h"
#include "kernels/cuda/families.h"
#include "kernels/explain.h"

namespace rollcast {
namespace {

struct Size {
  int rows = 0;
};

const OpFamily<Size>& Toy() {
  static const OpFamily<Size> family(
      "toy", {{"narrow",
               {{[](const Size& s) { return s.rows <= 8; },
                 [](const Size& s) { return StrCat(s.rows, " rows; up to 8"); }},
                {[](const Size& s) { return s.rows % 2 == 0; },
                 [](const Size& s) { return StrCat(s.rows, " rows; an even number"); }}}},
              {"wide",
               {{[](const Size& s) { return s.rows <= 100; },
                 [](const Size& s) { return StrCat(s.rows, " rows; up to 100"); }}}}});
  return family;
}

template <class F>
std::string MessageOf(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Dispatch, TakesTheFirstKernelWhoseConditionsAllHold) {
  const KernelChoice<Size> choice(Toy(), Profile::kInvariant, "auto");
  EXPECT_EQ(choice.Choose({8}), 0);
  EXPECT_EQ(choice.Choose({7}), 1);
  EXPECT_EQ(choice.Choose({10}), 1);
  const auto passed = choice.PassedOverFor(1, {7});
  ASSERT_EQ(passed.size(), 1u);
  EXPECT_EQ(passed[0].kernel, "narrow");
  EXPECT_EQ(passed[0].reason, "7 rows; an even number");
  EXPECT_EQ(MessageOf([&] { choice.Choose({101}); }),
            "toy: no kernel fits; narrow: 101 rows; up to 8; wide: 101 rows; up to 100");
}

TEST(Dispatch, ANameIsStrict) {
  const KernelChoice<Size> choice(Toy(), Profile::kReference, "narrow");
  EXPECT_EQ(choice.Choose({2}), 0);
  EXPECT_TRUE(choice.MayTake(0));
  EXPECT_FALSE(choice.MayTake(1));
  EXPECT_EQ(MessageOf([&] { choice.Choose({12}); }), "kernels.toy = narrow: 12 rows; up to 8");
  EXPECT_EQ(MessageOf([] { KernelChoice<Size>(Toy(), Profile::kInvariant, "broad"); }),
            "kernels.toy: this device has no kernel \"broad\"; it has narrow, wide (auto = the "
            "first that fits)");
}

TEST(Dispatch, ProfilesNameAKernelOrNone) {
  const KernelChoice<Size> reference(Toy(), Profile::kReference, "auto"),
      fastest(Toy(), Profile::kFastest, "auto");
  EXPECT_EQ(reference.Choose({2}), 1);
  EXPECT_EQ(reference.PassedOverFor(1, {2})[0].reason, "kernels.profile = reference: toy by wide");
  EXPECT_EQ(fastest.Choose({2}), 0);
  EXPECT_EQ(ParseProfile("fastest"), Profile::kFastest);
  EXPECT_EQ(MessageOf([] { ParseProfile("fast"); }),
            "kernels.profile: expected invariant, fastest or reference, not \"fast\"");
}

TEST(Dispatch, ReadsOpsFromAText) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(ParseOps("", "X"), Pairs());
  EXPECT_EQ(ParseOps("linear=wgmma,attention=whole", "X"),
            (Pairs{{"linear", "wgmma"}, {"attention", "whole"}}));
  EXPECT_EQ(ParseOps("attention=auto", "X"), (Pairs{{"attention", "auto"}}));
  EXPECT_EQ(MessageOf([] { ParseOps("linear", "X"); }),
            "X: expected op=kernel, got \"linear\" (for instance linear=generic,attention=whole)");
  for (const char* bad :
       {"linear=", ",", "linear=a,,attention=b", "=a", "embed=a", "linear=a,linear=b"})
    EXPECT_THROW(ParseOps(bad, "X"), Error) << bad;
}

TEST(CudaTables, ProductsFallBackToGenericAndSayWhy) {
  using cuda::Epilogue;
  const auto& family = cuda::LinearFamily();
  const KernelChoice<cuda::LinearAxes> choice(family, Profile::kInvariant, "auto");
  const auto reason = [&](const cuda::LinearAxes& axes) {
    EXPECT_EQ(choice.Choose(axes), cuda::kLinearGeneric);
    return choice.PassedOverFor(cuda::kLinearGeneric, axes).at(0).reason;
  };
  EXPECT_EQ(choice.Choose({64, 100, 128, Epilogue::kStore, true, true, true}), cuda::kLinearWgmma);
  EXPECT_EQ(choice.Choose({64, 112, 128, Epilogue::kGated, true, true, true}), cuda::kLinearWgmma);
  EXPECT_EQ(reason({64, 100, 128, Epilogue::kStore, true, true, false}),
            "the device or the build has no wgmma; it needs code for sm_90a");
  EXPECT_EQ(reason({64, 100, 100, Epilogue::kStore, true, true, true}),
            "K is 100; rows of whole 16 bytes need a multiple of 8");
  EXPECT_EQ(reason({64, 100, 128, Epilogue::kStore, true, false, true}),
            "the weight does not begin at a multiple of 16 bytes");
  EXPECT_EQ(reason({64, 100, 128, Epilogue::kStore, false, true, true}),
            "x does not begin at a multiple of 16 bytes");
  EXPECT_EQ(reason({64, 104, 128, Epilogue::kGated, true, true, true}),
            "N is 104; gate and up rows in pairs of 8 need a multiple of 16");
}

TEST(CudaTables, AttentionSpreadsFewSequences) {
  const KernelChoice<cuda::AttentionAxes> choice(cuda::AttentionFamily(), Profile::kInvariant,
                                                 "auto");
  const int shared = 227 << 10;
  // 6 * 132 CTAs over 4 KV heads.
  EXPECT_EQ(cuda::SplitSegments({1, 28, 4, 128, 2048, 132, shared}), 198u);
  EXPECT_EQ(choice.Choose({198, 28, 4, 128, 2048, 132, shared}), cuda::kAttentionSplit);
  EXPECT_EQ(choice.Choose({199, 28, 4, 128, 2048, 132, shared}), cuda::kAttentionWhole);
  // 513 slices of 28 * 130 floats each are 7.5 MB: 71 in 512 MiB.
  EXPECT_EQ(cuda::SplitSegments({1, 28, 4, 128, 32768, 132, shared}), 71u);
  EXPECT_EQ(choice.Choose({1, 34, 2, 128, 2048, 132, shared}), cuda::kAttentionWhole);
  EXPECT_EQ(choice.Choose({1, 4, 4, 256, 2048, 132, shared}), cuda::kAttentionSplit);
  EXPECT_EQ(MessageOf([&] {
              choice.Choose({1, 4, 4, 512, 2048, 132, shared});
            }),
            "attention: no kernel fits; split_kv: head_dim is 512; 1 to 256 are supported; whole: "
            "head_dim is 512; 1 to 256 are supported");
}

// Consumer cards and those of sm_86, sm_89 have 99 KiB a CTA.
TEST(CudaTables, AttentionAsksForNoMoreSharedMemoryThanThereIs) {
  const auto why_not = [](int head_dim) {
    return cuda::AttentionFamily().WhyNot(cuda::kAttentionWhole,
                                          {1, 4, 4, head_dim, 2048, 128, 99 << 10});
  };
  for (int head_dim : {1, 64, 100, 128}) EXPECT_EQ(why_not(head_dim), "") << head_dim;
  EXPECT_EQ(why_not(160),
            "head_dim is 160; it takes 135168 bytes of shared memory, and the device has 101376");
  EXPECT_EQ(
      cuda::AttentionFamily().WhyNot(cuda::kAttentionSplit, {1, 4, 4, 256, 2048, 128, 99 << 10}),
      "");
}

TEST(CudaTables, KnowTwoArchitectures) {
  EXPECT_TRUE(cuda::ArchByName("sm_90a").wgmma);
  EXPECT_FALSE(cuda::ArchByName("sm_80").wgmma);
  EXPECT_EQ(MessageOf([] { cuda::ArchByName("sm_75"); }),
            "--arch sm_75: known are sm_90a and sm_80");
}

TEST(CpuTables, TakeTheWidestSetOfTheProcessor) {
  const auto kernels = [](const BackendOptions& options, const cpu::CpuAxes& processor) {
    return std::string(cpu::ChooseKernels(options, processor).all.name);
  };
  BackendOptions options;
  EXPECT_EQ(kernels(options, {false, false}), "plain");
#if defined(__x86_64__)
  EXPECT_EQ(kernels(options, {true, false}), "avx2");
  EXPECT_EQ(kernels(options, {true, true}), "avx512");
  options.isa = "avx2";
  EXPECT_EQ(kernels(options, {true, true}), "avx2");
  const cpu::CpuKernels all_avx2 = cpu::ChooseKernels(options, {true, true});
  EXPECT_EQ(all_avx2.all.product, cpu::kAvx2Kernels.product);
  options.linear = "plain";
  const cpu::CpuKernels mixed = cpu::ChooseKernels(options, {true, true});
  EXPECT_EQ(mixed.all.product, cpu::kPlainKernels.product);
  EXPECT_EQ(mixed.all.attention_slice, cpu::kAvx2Kernels.attention_slice);
  EXPECT_EQ(mixed.all.rms_norm, cpu::kAvx2Kernels.rms_norm);
  options.profile = "reference";
  options.isa = options.linear = "auto";
  EXPECT_EQ(kernels(options, {true, true}), "plain");
  options.attention = "avx512";
  EXPECT_EQ(cpu::ChooseKernels(options, {true, true}).all.attention_fold,
            cpu::kAvx512Kernels.attention_fold);
#endif
  options.attention = "avx512";
  EXPECT_EQ(MessageOf([&] {
              cpu::ChooseKernels(options, {true, false});
            }),
            "kernels.attention = avx512: this processor does not have avx512 (F, BW, VL and DQ)");
  options.attention = "split_kv";
  EXPECT_EQ(MessageOf([&] {
              cpu::ChooseKernels(options, {true, false});
            }),
            "kernels.attention: this device has no kernel \"split_kv\"; it has avx512, avx2, plain "
            "(auto = the first that fits)");
}

StepSizes Qwen7B(int batch) { return {batch, 3584, 18944, 152064, 28, 4, 128, 2048}; }

TEST(Explain, TellsEveryOpInOrder) {
  BackendOptions options;
  options.device = "cuda";
  const Explanation e = ExplainDecode(options, Qwen7B(64), "sm_90a");
  EXPECT_EQ(e.device, "cuda, sm_90a (132 multiprocessors, as an H200)");
  std::vector<std::string> ops;
  for (const KernelUse& use : e.uses) ops.push_back(use.op);
  EXPECT_EQ(ops, (std::vector<std::string>{"Embed", "AttentionInput", "Attention", "ProjectAdd",
                                           "MlpInput", "ProjectAdd", "HeadSample", "HeadSample",
                                           "Advance"}));
  EXPECT_EQ(e.uses[1].N, 4608);
  EXPECT_EQ(e.uses[1].K, 3584);
  EXPECT_EQ(e.uses[1].kernel, "wgmma");
  EXPECT_TRUE(e.uses[1].passed_over.empty());
  EXPECT_EQ(e.uses[2].kernel, "split_kv");
  EXPECT_EQ(e.uses[2].cut, "slices of 64 tokens over 792 CTAs, then folded");
  EXPECT_EQ(e.uses[4].N, 37888);
  EXPECT_EQ(e.uses[4].cut, "tile 320 x 64, K whole, 119 CTAs, 4 stages (193 KiB)");
  EXPECT_EQ(e.uses[5].K, 18944);
  EXPECT_EQ(e.uses[5].cut, "tile 128 x 64, K over clusters of 4, 112 CTAs, 6 stages (211 KiB)");
}

TEST(Explain, SaysWhyOthersWerePassedOver) {
  BackendOptions options;
  options.device = "cuda:1";
  options.attention = "whole";
  const Explanation e = ExplainDecode(options, Qwen7B(300), "sm_80");
  EXPECT_EQ(e.uses[1].kernel, "generic");
  EXPECT_EQ(e.uses[1].passed_over.at(0).reason,
            "the device or the build has no wgmma; it needs code for sm_90a");
  EXPECT_EQ(e.uses[2].kernel, "whole");
  EXPECT_EQ(e.uses[2].cut, "1200 CTAs, one a sequence and KV head");
  EXPECT_EQ(e.uses[2].passed_over.at(0).reason,
            "300 sequences; with 4 KV heads and 2048 tokens of context it takes up to 162");
  options.linear = "wgmma";
  EXPECT_EQ(MessageOf([&] { ExplainDecode(options, Qwen7B(1), "sm_80"); }),
            "kernels.linear = wgmma: the device or the build has no wgmma; it needs code for "
            "sm_90a");
}

TEST(Explain, TellsTheCpuToo) {
  BackendOptions options;
  options.device = "cpu";
  options.isa = "plain";
  const Explanation e = ExplainDecode(options, Qwen7B(2), "sm_90a");
  EXPECT_TRUE(e.in_this_build);
  EXPECT_EQ(e.uses[1].kernel, "plain");
  EXPECT_EQ(e.uses[1].passed_over.at(0).kernel, "avx512");
  EXPECT_EQ(e.uses[1].cut, "tasks of 96 columns");
}

}  // namespace
}  // namespace rollcast
