// What rollcast explain prints.
#include "launch/explain_command.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/testing/expect_error.h"
#include "tests/testing/temporary_dir.h"
#include "tests/testing/toy_model.h"

namespace rollcast {
namespace {

using testing::ExpectError;

std::string Explain(const Config& config, const ExplainOptions& options) {
  std::ostringstream out;
  EXPECT_EQ(RunExplain(config, options, out), 0);
  return out.str();
}

Config On(const std::string& device) {
  Config config;
  config.kernels.device = device;
  return config;
}

ExplainOptions Shape(const std::string& name, int batch) {
  ExplainOptions options;
  options.shape = name;
  options.batch = batch;
  return options;
}

/// The line of `text` that holds both, without runs of spaces.
std::string LineOf(const std::string& text, const std::string& a, const std::string& b) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(a) == std::string::npos || line.find(b) == std::string::npos) continue;
    std::istringstream words(line);
    std::string out;
    for (std::string word; words >> word;) out += (out.empty() ? "" : " ") + word;
    return out;
  }
  return "no line with " + a + " and " + b + " in\n" + text;
}

TEST(Explain, PrintsKernelAndCutOfEachProductOnAGpu) {
  Config config = On("cuda");
  config.engine.max_context = 2048;
  const std::string text = Explain(config, Shape("qwen2.5-7b", 64));
  EXPECT_EQ(LineOf(text, "decode step", ""),
            "qwen2.5-7b: a decode step of 64 sequences of up to 2048 tokens, 28 layers");
  EXPECT_EQ(LineOf(text, "device:", ""), "device: cuda, sm_90a (132 multiprocessors, as an H200)");
  EXPECT_EQ(text.find("this build has no CUDA backend") == std::string::npos, BuildHasCuda());
  EXPECT_EQ(LineOf(text, "MlpInput", ""),
            "MlpInput gate, up 37888 x 3584 wgmma tile 320 x 64, K whole, 119 CTAs, 4 stages (193 "
            "KiB)");
  EXPECT_EQ(LineOf(text, "Attention ", "KV"),
            "Attention q against paged KV split_kv slices of 64 tokens over 792 CTAs, then folded");
  EXPECT_EQ(text.find("not "), std::string::npos) << text;
}

TEST(Explain, PrintsWhyAKernelWasPassedOver) {
  ExplainOptions options = Shape("qwen3-8b", 256);
  options.arch = "sm_80";
  Config config = On("cuda");
  config.kernels.profile = "fastest";
  const std::string text = Explain(config, options);
  EXPECT_EQ(LineOf(text, "profile:", ""),
            "profile: fastest, which has no kernels of its own: as invariant");
  EXPECT_EQ(LineOf(text, "not wgmma", ""),
            "not wgmma: the device or the build has no wgmma; it needs code for sm_90a");
  EXPECT_EQ(
      LineOf(text, "not split_kv", ""),
      "not split_kv: 256 sequences; with 8 KV heads and 40960 tokens of context it takes up to "
      "50");
  config.kernels.profile = "reference";
  options.batch = 1;
  options.arch = "sm_90a";
  EXPECT_EQ(LineOf(Explain(config, options), "not split_kv", ""),
            "not split_kv: kernels.profile = reference: attention by whole");
}

TEST(Explain, ReadsAModelFolder) {
  const testing::TemporaryDir folder;
  std::ofstream(folder.path() / "config.json") << testing::ToyConfigJson();
  Config config = On("cpu");
  config.kernels.isa = "plain";
  config.model.path = folder.path().string();
  const std::string text = Explain(config, {});
  EXPECT_EQ(LineOf(text, "device:", ""), "device: cpu, this processor");
  EXPECT_NE(LineOf(text, "ProjectAdd", "down").find(" plain tasks of "), std::string::npos) << text;
  EXPECT_NE(text.find("not avx512: "), std::string::npos) << text;
}

TEST(Explain, RefusesWhatDoesNotFit) {
  const auto explain = [](const Config& config, const ExplainOptions& options) {
    return [=] { Explain(config, options); };
  };
  ExpectError(explain(On("cuda"), {}), {"--shape NAME or --model DIR"});
  ExpectError(explain(On("cuda"), Shape("qwen9", 1)), {"--shape qwen9", "qwen2.5-7b"});
  ExpectError(explain(On("cuda"), Shape("qwen2.5-7b", 0)), {"--batch must be at least 1, not 0"});
  ExpectError(explain(On("tpu"), Shape("qwen2.5-7b", 1)), {"device", "tpu"});
  ExplainOptions options = Shape("qwen2.5-7b", 1);
  options.arch = "sm_70";
  ExpectError(explain(On("cuda"), options), {"--arch sm_70: known are sm_90a and sm_80"});
  Config config = On("cuda");
  config.engine.max_context = 1 << 20;
  ExpectError(explain(config, Shape("qwen2.5-7b", 1)), {"engine.max_context is 1048576", "32768"});
  config.engine.max_context = 0;
  config.kernels.attention = "split_kv";
  ExpectError(explain(config, Shape("qwen2.5-7b", 500)),
              {"kernels.attention = split_kv: 500 sequences"});
  config.kernels.attention = "avx2";
  ExpectError(explain(config, Shape("qwen2.5-7b", 1)),
              {"no kernel \"avx2\"; it has split_kv, whole"});
}

}  // namespace
}  // namespace rollcast
