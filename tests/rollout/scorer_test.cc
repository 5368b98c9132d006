#include "rollout/scorer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/check.h"
#include "rollout/scorers.h"

namespace rollcast {
namespace {

Score ScoreOne(const ScorerConfig& config, std::string completion, std::string answer,
               int num_tokens = 0) {
  ScoreInput input;
  input.completion = std::move(completion);
  input.reference = std::move(answer);
  input.completion_ids.resize(static_cast<size_t>(num_tokens));
  const auto scores = MakeScorer(config)->ScoreBatch({&input, 1});
  RC_CHECK_EQ(scores.size(), 1u);
  return scores[0];
}

double Reward(const ScorerConfig& config, std::string completion, std::string answer,
              int num_tokens = 0) {
  const Score score = ScoreOne(config, std::move(completion), std::move(answer), num_tokens);
  EXPECT_EQ(score.error, "");
  return score.reward;
}

std::string MakeError(const ScorerConfig& config) {
  try {
    MakeScorer(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ScorerTest, Exact) {
  const ScorerConfig config{.kind = "exact"};
  EXPECT_EQ(Reward(config, " Paris \n", "Paris"), 1);
  EXPECT_EQ(Reward(config, "Paris.", "Paris"), 0);
  EXPECT_EQ(ScoreOne(config, "x", "").error, "the prompt has no answer to compare with");
}

TEST(ScorerTest, Numeric) {
  const ScorerConfig config{.kind = "numeric"};
  EXPECT_EQ(Reward(config, "7 + 5 = 12.", "12"), 1);
  EXPECT_EQ(Reward(config, "7 + 5 = 13.", "12"), 0);
  EXPECT_EQ(Reward(config, "none", "12"), 0);
  EXPECT_EQ(Reward(config, "72", "They had 48 + 24 = 72.\n#### 72"), 1);
  EXPECT_NE(ScoreOne(config, "12", "twelve").error.find("\"twelve\" has no number"),
            std::string::npos);
  EXPECT_NE(ScoreOne(config, "12", "").error, "");
}

TEST(ScorerTest, Length) {
  const ScorerConfig config{.kind = "length", .target_length = 10};
  EXPECT_EQ(Reward(config, "", "", 10), 1);
  EXPECT_DOUBLE_EQ(Reward(config, "", "", 4), 0.4);
  EXPECT_DOUBLE_EQ(Reward(config, "", "", 16), 0.4);
  EXPECT_EQ(Reward(config, "", "", 0), 0);
  EXPECT_EQ(Reward(config, "", "", 50), 0);
}

TEST(ScorerTest, RegexIsFoundAnywhere) {
  const ScorerConfig config{.kind = "regex", .pattern = "#### \\d+"};
  EXPECT_EQ(Reward(config, "so\n#### 5\n", ""), 1);
  EXPECT_EQ(Reward(config, "so\n#### 5\n", "6"), 1);
  EXPECT_EQ(Reward(config, "5", ""), 0);
  EXPECT_EQ(Reward(config, "", ""), 0);
}

TEST(ScorerTest, RegexGroupIsTheAnswer) {
  const ScorerConfig config{
      .kind = "regex", .pattern = "#### (\\S+)|nothing", .format_reward = 0.25};
  EXPECT_EQ(Reward(config, "#### 5.0", "5"), 1);
  EXPECT_EQ(Reward(config, "#### 6", "5"), 0.25);
  EXPECT_EQ(Reward(config, "nothing", "5"), 0.25);
  EXPECT_EQ(Reward(config, "5", "5"), 0);
  EXPECT_EQ(Reward(config, "#### 6", ""), 1);
}

TEST(ScorerTest, FormatMatchesTheWhole) {
  const ScorerConfig config{.kind = "format", .pattern = "(-?\\d+)\\.?", .format_reward = 0.5};
  EXPECT_EQ(Reward(config, " 12.\n", "12"), 1);
  EXPECT_EQ(Reward(config, "13", "12"), 0.5);
  EXPECT_EQ(Reward(config, "It is 12", "12"), 0);
  EXPECT_EQ(Reward(config, "12 apples", "12"), 0);
}

TEST(ScorerTest, RegexThatBacktracksWithoutEndIsAnError) {
  const ScorerConfig config{.kind = "regex", .pattern = "(a+)+$"};
  EXPECT_NE(ScoreOne(config, std::string(60, 'a') + "b", "").error.find("match limit"),
            std::string::npos);
}

TEST(ScorerTest, RegexSeesInvalidUtf8AsNoMatchAndNotAsAFailure) {
  const ScorerConfig config{.kind = "regex", .pattern = "b+"};
  EXPECT_EQ(Reward(config, "\xff\xfe bb", ""), 1);
  EXPECT_EQ(Reward(config, "\xff\xfe", ""), 0);
}

TEST(ScorerTest, BadConfigurationIsNamed) {
  EXPECT_EQ(MakeError({.kind = "bleu"}),
            "scorer kind is \"bleu\"; it must be one of exact, numeric, regex, format, length, "
            "command, http");
  EXPECT_NE(MakeError({.kind = "regex"}).find("pattern"), std::string::npos);
  EXPECT_NE(MakeError({.kind = "regex", .pattern = "(a"}).find("offset 2"), std::string::npos);
  EXPECT_NE(MakeError({.kind = "regex", .pattern = "a", .format_reward = 2}).find("[0, 1]"),
            std::string::npos);
  EXPECT_NE(MakeError({.kind = "command"}).find("needs a command"), std::string::npos);
  EXPECT_NE(MakeError({.kind = "http"}).find("needs a url"), std::string::npos);
  EXPECT_NE(MakeError({.kind = "length", .target_length = 0}).find("target_length is 0"),
            std::string::npos);
  EXPECT_NE(MakeError({.kind = "exact", .deadline_s = 0}).find("deadline_s is 0"),
            std::string::npos);
  EXPECT_NE(MakeError({.kind = "exact", .deadline_s = std::nan("")}).find("deadline_s"),
            std::string::npos);
  EXPECT_NE(MakeError({.kind = "exact", .max_tries = 0}).find("max_tries is 0"), std::string::npos);
}

TEST(ScorerTest, NothingIsFineEverywhere) {
  for (const char* kind : {"exact", "numeric", "length"})
    EXPECT_TRUE(MakeScorer({.kind = kind})->ScoreBatch({}).empty());
}

TEST(ScorersTest, NonFiniteToNullLeavesStringsAlone) {
  EXPECT_EQ(NonFiniteToNull(R"({"a": NaN, "NaN": [-Infinity, Infinity]})"),
            R"({"a": null, "NaN": [null, null]})");
  EXPECT_EQ(NonFiniteToNull(R"({"a\"NaN": "Infinity\\"})"), R"({"a\"NaN": "Infinity\\"})");
  EXPECT_EQ(NonFiniteToNull("\"\\"), "\"\\");
}

TEST(ScorersTest, FiniteScore) {
  EXPECT_EQ(FiniteScore(-2.5).reward, -2.5);
  EXPECT_EQ(FiniteScore(-2.5).error, "");
  EXPECT_EQ(FiniteScore(std::nan("")).error, "the reward is nan, not finite");
  EXPECT_EQ(FiniteScore(-HUGE_VAL).error, "the reward is -inf, not finite");
  EXPECT_EQ(FiniteScore(-1e308).error, "the reward is -1e+308, beyond float32 (3.4e+38 at most)");
  EXPECT_EQ(FiniteScore(3.4e38).error, "");
}

TEST(ScorersTest, ExcerptIsShortAndPrintable) {
  EXPECT_EQ(Excerpt("a\nb"), "a?b");
  EXPECT_EQ(Excerpt(std::string(10, 'x'), 4), "xxxx...");
  EXPECT_EQ(Excerpt("\xff"), "\uFFFD");
}

}  // namespace
}  // namespace rollcast
