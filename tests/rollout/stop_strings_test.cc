#include "rollout/stop_strings.h"

#include <gtest/gtest.h>

#include "tests/testing/byte_tokenizer.h"

namespace rollcast {
namespace {

using testing::ByteTokenizer;

// The number of tokens after which the search says stop; 0 = never.
size_t StopsAfter(const std::string& text, std::vector<std::string> strings, int min_tokens,
                  std::string* answer = nullptr) {
  const ByteTokenizer tokenizer;
  StopStrings stop(tokenizer, std::move(strings), min_tokens);
  const std::vector<int32_t> ids = tokenizer.Encode(text);
  for (size_t n = 1; n <= ids.size(); ++n) {
    if (!stop.Check(std::span(ids).first(n))) continue;
    if (answer != nullptr) {
      *answer = text.substr(0, n);
      stop.Cut(std::span(ids).first(n), *answer);
    }
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
  std::string answer;
  EXPECT_EQ(StopsAfter("one two", {"two", "ne"}, 0, &answer), 3u);
  EXPECT_EQ(answer, "o");
  EXPECT_EQ(StopsAfter("abc", {"c", "bc"}, 0, &answer), 3u);
  EXPECT_EQ(answer, "a") << "it begins earlier";
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
}

/// Ids are words; the last is special.
class WordTokenizer final : public ByteTokenizer {
 public:
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const override {
    static const std::string kWords[] = {"7", "\n", "\n\n", "...", "\n9\n", "<end>"};
    std::string text;
    for (const int32_t id : ids)
      if (!skip_special_tokens || !IsSpecial(id)) text += kWords[id];
    return text;
  }
  bool IsSpecial(int32_t id) const override { return id == 5; }
};

TEST(StopStringsTest, TheAnswerEndsBeforeTheFirstMatchOfTheLastToken) {
  const WordTokenizer tokenizer;
  const auto answer = [&](const std::vector<int32_t>& ids, const std::string& string,
                          int min_tokens = 0) {
    StopStrings stop(tokenizer, {string}, min_tokens);
    EXPECT_TRUE(stop.Check(ids));
    std::string text = tokenizer.Decode(ids, true);
    stop.Cut(ids, text);
    return text;
  };
  EXPECT_EQ(answer({0, 2}, "\n"), "7");
  EXPECT_EQ(answer({0, 3}, "."), "7");
  EXPECT_EQ(answer({0, 4}, "\n"), "7");
  EXPECT_EQ(answer({0, 1, 0, 2}, "\n", 4), "7\n7") << "the first is before min_tokens";
  EXPECT_EQ(answer({0, 1, 2}, "\n\n"), "7") << "it begins in the token before";
  EXPECT_EQ(answer({0, 1, 5}, "<end>"), "7\n");
  StopStrings none(tokenizer, {"zz"}, 0);
  std::string text = "7zz";
  none.Cut(std::vector<int32_t>{0, 1}, text);
  EXPECT_EQ(text, "7zz");
}

}  // namespace
}  // namespace rollcast
