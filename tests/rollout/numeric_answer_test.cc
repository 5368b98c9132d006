#include "rollout/numeric_answer.h"

#include <gtest/gtest.h>

namespace rollcast {
namespace {

std::optional<double> Final(std::string_view text) {
  const auto number = FinalNumber(text);
  if (!number) return std::nullopt;
  return number->value;
}

TEST(FinalNumberTest, TakesTheLastNumber) {
  EXPECT_EQ(Final("7 + 5 = 12."), 12);
  EXPECT_EQ(Final("12 - 5 is 7"), 7);
  EXPECT_EQ(Final("no number here"), std::nullopt);
  EXPECT_EQ(Final(""), std::nullopt);
  EXPECT_EQ(Final("It is 3.5, I think."), 3.5);
  EXPECT_EQ(Final("about .25"), 0.25);
  EXPECT_EQ(Final("version 1.2.3"), 3);
}

TEST(FinalNumberTest, Signs) {
  EXPECT_EQ(Final("the answer is -5"), -5);
  EXPECT_EQ(Final("x=-5"), -5);
  EXPECT_EQ(Final("x = +5"), 5);
  EXPECT_EQ(Final("\u22125"), -5);
  EXPECT_EQ(Final("7-5"), 5);
  EXPECT_EQ(Final("pages 3-4"), 4);
  EXPECT_EQ(Final("(2)-5"), 5);
  EXPECT_EQ(Final("-$5.50"), -5.5);
  EXPECT_EQ(Final("$-5"), -5);
}

TEST(FinalNumberTest, ThousandsSeparators) {
  EXPECT_EQ(Final("1,234,567"), 1234567);
  EXPECT_EQ(Final("$1,234.50"), 1234.5);
  EXPECT_EQ(Final("1{,}234"), 1234);
  EXPECT_EQ(Final("1, 2"), 2);
  EXPECT_EQ(Final("1,23"), 23);
  EXPECT_EQ(Final("12,3456"), 3456);
  EXPECT_EQ(Final("1234,567"), 567);
}

TEST(FinalNumberTest, FractionsPercentExponents) {
  EXPECT_EQ(Final("it is 3/4 of it"), 0.75);
  EXPECT_EQ(Final("-1 / 2"), -0.5);
  EXPECT_EQ(Final("5/0"), 0);
  EXPECT_EQ(Final("on 12/05/2024"), 2024);
  EXPECT_EQ(Final("on 12 / 05 / 2024, 3/4 of it"), 0.75);
  EXPECT_EQ(Final("/3/4"), 0.75);
  EXPECT_EQ(Final("1.5e3"), 1500);
  EXPECT_EQ(Final("2e-3"), 0.002);
  EXPECT_EQ(Final("1e999"), std::nullopt);
  EXPECT_EQ(Final("\\frac{1}{4}"), 0.25);
  EXPECT_EQ(Final("-\\dfrac{ 3 }{-4}"), 0.75);
  EXPECT_EQ(FinalNumber("50%"), (WrittenNumber{50, true}));
  EXPECT_EQ(FinalNumber("50 \\%"), (WrittenNumber{50, true}));
}

TEST(FinalNumberTest, DigitsInsideWordsAreNoNumbers) {
  EXPECT_EQ(Final("5 g of CO2"), 5);
  EXPECT_EQ(Final("8 is x2.5"), 8);
  EXPECT_EQ(Final("12km"), 12);
}

TEST(FinalNumberTest, MarkersComeFirst) {
  EXPECT_EQ(Final("#### 12 and then 13"), 12);
  EXPECT_EQ(Final("#### 12\n#### 1,300"), 1300);
  EXPECT_EQ(Final("4 ####"), std::nullopt);
  EXPECT_EQ(Final("so \\boxed{42}, not 43"), 42);
  EXPECT_EQ(Final("\\boxed{1} \\boxed{x = \\frac{1}{2}} 9"), 0.5);
  EXPECT_EQ(Final("\\boxed{{{7}}} 8"), 7);
  EXPECT_EQ(Final("\\boxed{3} and \\boxed{4"), 3);
  EXPECT_EQ(Final("\\boxed{yes} 8"), std::nullopt);
  EXPECT_EQ(Final("#### 5 \\boxed{6}"), 6);
}

TEST(FinalNumberTest, LongAndHostileTextEnds) {
  EXPECT_EQ(Final(std::string(100000, '9')), std::nullopt);
  EXPECT_EQ(Final(std::string(100000, '-') + "4"), -4);
  std::string boxes;
  for (int i = 0; i < 20000; ++i) boxes += "\\boxed{";
  EXPECT_EQ(Final(boxes + "5"), 5);
}

// Infinity would be near every answer: a completion that ends so would earn every reward.
TEST(FinalNumberTest, QuotientsBeyondFloat64AreNoNumbers) {
  EXPECT_EQ(Final("1e300/1e-300"), 1e-300);  // as 5/0: two numbers
  EXPECT_EQ(Final("\\frac{1e300}{1e-300}"), 1e-300);
  EXPECT_EQ(Final("-1e300 / 1e-9"), 1e-9);
  EXPECT_EQ(ParseNumber("1e300/1e-300"), std::nullopt);
  EXPECT_FALSE(SameAnswer("5", "1e300/1e-300"));
  EXPECT_FALSE(SameAnswer("5", "\\frac{1e300}{1e-300}"));
}

TEST(FinalNumberTest, ANumberBeyondFloat64IsPassedOverAsAWhole) {
  std::string groups = "1";
  for (int i = 0; i < 20000; ++i) groups += ",111";
  EXPECT_EQ(Final(groups), std::nullopt);  // and not the last 308 digits
  EXPECT_EQ(Final("7 and " + groups), 7);
  EXPECT_EQ(Final(groups + " or 8"), 8);
}

TEST(ParseNumberTest, TheWholeTextMustBeTheNumber) {
  EXPECT_EQ(ParseNumber(" 1,000 "), (WrittenNumber{1000, false}));
  EXPECT_EQ(ParseNumber("-3/4"), (WrittenNumber{-0.75, false}));
  EXPECT_EQ(ParseNumber("$5"), (WrittenNumber{5, false}));
  EXPECT_EQ(ParseNumber("5 apples"), std::nullopt);
  EXPECT_EQ(ParseNumber("x5"), std::nullopt);
  EXPECT_EQ(ParseNumber(""), std::nullopt);
}

TEST(SameNumberTest, RelativeTolerance) {
  EXPECT_TRUE(SameNumber({1000000, false}, {1000000.5, false}));
  EXPECT_FALSE(SameNumber({1000000, false}, {1000002, false}));
  EXPECT_FALSE(SameNumber({0, false}, {1e-9, false}));
  EXPECT_TRUE(SameNumber({0, false}, {-0.0, false}));
  EXPECT_FALSE(SameNumber({1, false}, {-1, false}));
}

TEST(SameNumberTest, IntegersAreComparedExactly) {
  EXPECT_FALSE(SameNumber({12345678, false}, {12345679, false}));
  EXPECT_TRUE(SameNumber({12345678, false}, {12345678, false}));
  EXPECT_TRUE(SameNumber({12345678, false}, {12345678.5, false}));
  EXPECT_FALSE(SameNumber({9007199254740992, false}, {9007199254740991, false}));
  EXPECT_FALSE(SameNumber({100000000, true}, {1000001, false}));
  EXPECT_FALSE(SameAnswer("12,345,678", "12345679.0"));
}

TEST(SameNumberTest, PercentMeansEither) {
  EXPECT_TRUE(SameNumber({50, true}, {50, false}));
  EXPECT_TRUE(SameNumber({0.5, false}, {50, true}));
  EXPECT_TRUE(SameNumber({50, true}, {50, true}));
  EXPECT_FALSE(SameNumber({0.5, true}, {50, true}));
  EXPECT_FALSE(SameNumber({5, true}, {50, false}));
}

TEST(SameAnswerTest, TextOrNumber) {
  EXPECT_TRUE(SameAnswer(" Paris\n", "Paris"));
  EXPECT_FALSE(SameAnswer("paris", "Paris"));
  EXPECT_TRUE(SameAnswer("12.0", "12"));
  EXPECT_FALSE(SameAnswer("12 apples", "12"));
}

}  // namespace
}  // namespace rollcast
