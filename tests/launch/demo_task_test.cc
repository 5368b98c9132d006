// The demo's task is what its training run claims to be: sums, and a reward that only they earn.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "launch/config.h"
#include "rollout/prompt_source.h"
#include "rollout/scorer.h"

namespace rollcast {
namespace {

const std::string kConfigs = std::string(ROLLCAST_TEST_DATA) + "/../../configs/";

TEST(DemoTaskTest, EveryPromptIsASumWithItsAnswer) {
  const auto chat =
      ChatTemplate::Parse("'<|im_start|>'<|im_end|>{% if add_generation_prompt %}", "template");
  const auto prompts = ReadPrompts(kConfigs + "demo_prompts.jsonl", {.chat_template = &chat});
  EXPECT_EQ(prompts.size(), 324u);
  for (const Prompt& prompt : prompts) {
    int a = 0, b = 0;
    ASSERT_EQ(std::sscanf(prompt.id.c_str(), "%d+%d", &a, &b), 2) << prompt.id;
    EXPECT_EQ(prompt.answer, std::to_string(a + b));
    const size_t first = prompt.text.find(std::to_string(a));
    ASSERT_NE(first, std::string::npos) << prompt.text;
    EXPECT_NE(prompt.text.find(std::to_string(b), first + 1), std::string::npos) << prompt.text;
  }
}

TEST(DemoTaskTest, OnlyACompletionThatEndsInTheSumEarnsOne) {
  const auto scorer = MakeScorer(LoadConfig(kConfigs + "demo.toml", {}).scorer);
  const auto reward = [&](const std::string& completion) {
    ScoreInput input;
    input.completion = completion;
    input.reference = "12";
    const auto scores = scorer->ScoreBatch({&input, 1});
    EXPECT_EQ(scores[0].error, "");
    return scores[0].reward;
  };
  for (const char* right : {"12", "12.", "7 + 5 = 12", "The answer is 12.", "7 plus 5 equals 12."})
    EXPECT_EQ(reward(right), 1) << right;
  for (const char* wrong : {"2", "7 + 5 = 13", "7 + 5 = 112"})
    EXPECT_EQ(reward(wrong), 0.1) << wrong;
  // What runs under looser patterns learnt to write.
  for (const char* filler : {"12     ", "1 1 1 12", "12 12 12 12", "7 + 5 = 12\n", "12 is it", ""})
    EXPECT_EQ(reward(filler), 0) << filler;
}

}  // namespace
}  // namespace rollcast
