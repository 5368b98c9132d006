#include "rollout/stop_strings.h"

#include <gtest/gtest.h>

#include "tests/testing/byte_tokenizer.h"

namespace rollcast {
namespace {

using testing::ByteTokenizer;

// The number of tokens after which the search says stop; 0 = never.
size_t StopsAfter(const std::string& text, std::vector<std::string> strings, int min_tokens,
                  std::string* found = nullptr) {
  const ByteTokenizer tokenizer;
  StopStrings stop(tokenizer, std::move(strings), min_tokens);
  const std::vector<int32_t> ids = tokenizer.Encode(text);
  for (size_t n = 1; n <= ids.size(); ++n) {
    if (!stop.Check(std::span(ids).first(n))) continue;
    if (found != nullptr) *found = stop.found();
    return n;
  }
  return 0;
}

TEST(StopStringsTest, StopsWithTheTokenThatCompletesAMatch) {
  EXPECT_EQ(StopsAfter("hello END world", {"END"}, 0), 9u);
  EXPECT_EQ(StopsAfter("hello EN D", {"END"}, 0), 0u);
  EXPECT_EQ(StopsAfter("END", {"END"}, 0), 3u);
  EXPECT_EQ(StopsAfter("aaab", {"aab"}, 0), 4u);
  EXPECT_EQ(StopsAfter("x", {"x"}, 0), 1u);
}

TEST(StopStringsTest, AMatchBeforeMinTokensDoesNotCount) {
  EXPECT_EQ(StopsAfter("END and END", {"END"}, 4), 11u);
  EXPECT_EQ(StopsAfter("END and", {"END"}, 4), 0u);
  EXPECT_EQ(StopsAfter("END", {"END"}, 3), 3u) << "it ends in the third token";
}

TEST(StopStringsTest, TheEarliestOfSeveralWins) {
  std::string found;
  EXPECT_EQ(StopsAfter("one two", {"two", "ne"}, 0, &found), 3u);
  EXPECT_EQ(found, "ne");
  EXPECT_EQ(StopsAfter("abc", {"c", "bc"}, 0, &found), 3u);
  EXPECT_EQ(found, "bc") << "it begins earlier";
  EXPECT_EQ(StopsAfter("abc", {"", "zz"}, 0), 0u);
  EXPECT_EQ(StopsAfter("abc", {}, 0), 0u);
}

TEST(StopStringsTest, FindsTextBeyondAscii) {
  EXPECT_EQ(StopsAfter("ab\xc3\xa9z", {"\xc3\xa9"}, 0), 4u) << "with the character's last byte";
}

TEST(StopStringsTest, CatchesUpWhenCalledWithSeveralNewTokens) {
  const ByteTokenizer tokenizer;
  StopStrings stop(tokenizer, {"bc"}, 0);
  const std::vector<int32_t> ids = tokenizer.Encode("abcd");
  EXPECT_FALSE(stop.Check(std::span(ids).first(1)));
  EXPECT_TRUE(stop.Check(ids));
  EXPECT_EQ(stop.found(), "bc");
}

}  // namespace
}  // namespace rollcast
