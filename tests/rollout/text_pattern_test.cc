#include "rollout/text_pattern.h"

#include <gtest/gtest.h>

#include "kernels/check.h"
#include "rollout/oniguruma.h"
#include "rollout/unicode.h"

namespace rollcast {
namespace {

/// Matches in [ ], the rest as it is.
std::string Marked(const TextPattern& pattern, const std::string& text) {
  std::vector<TextPattern::Part> parts;
  pattern.Cut(text, parts);
  std::string out;
  size_t covered = 0;
  for (const auto& part : parts) {
    EXPECT_EQ(part.begin, covered);
    covered = part.end;
    const std::string piece = text.substr(part.begin, part.end - part.begin);
    out += part.match ? "[" + piece + "]" : piece;
  }
  EXPECT_EQ(covered, text.size());
  return out;
}

std::string Regex(const std::string& pattern, const std::string& text) {
  return Marked(TextPattern::Regex(pattern), text);
}

TEST(TextPatternTest, CutsIntoMatchesAndTheRest) {
  EXPECT_EQ(Regex("b+", "abbab"), "a[bb]a[b]");
  EXPECT_EQ(Marked(TextPattern::Literal("bb"), "abbbb"), "a[bb][bb]");
  EXPECT_EQ(Marked(TextPattern::Literal("."), "a.b"), "a[.]b");
  // An empty match is taken unless it touches the match before it.
  EXPECT_EQ(Regex("b*", "abc"), "[]a[b]c[]");
  EXPECT_EQ(Marked(TextPattern::Literal(""), "ab"), "[]a[]b[]");
  EXPECT_EQ(TextPattern::Regex("[aeiou]").ReplaceAll("banana", "_"), "b_n_n_");
}

// What Oniguruma's Ruby syntax makes of these is noted where PCRE2 alone would differ.
TEST(TextPatternTest, ReadsOnigurumasSyntax) {
  EXPECT_EQ(Regex("\\s",
                  "a\xE1\xA0\x8E"
                  "b\xC2\x85"),
            "a\xE1\xA0\x8E"
            "b[\xC2\x85]");                                    // not U+180E
  EXPECT_EQ(Regex("\\w+", "e\xCC\x81_1-"), "[e\xCC\x81_1]-");  // marks are \w
  EXPECT_EQ(Regex("[^\\W]", "\xC2\xB2-a"), "\xC2\xB2-[a]");    // but not in a class
  EXPECT_EQ(Regex("\\w", "\xC2\xB2-"), "[\xC2\xB2]-");
  EXPECT_EQ(Regex("\\h+", "xAf0 g"), "x[Af0] g");  // hexadecimal
  EXPECT_EQ(Regex("\\bb", "ab b"), "ab [b]");
  EXPECT_EQ(Regex("\\v", "\n\x0B"), "\n[\x0B]");
  EXPECT_EQ(Regex("(?m:.)", "\n"), "[\n]");
  EXPECT_EQ(Regex(".", "\n\r"), "\n[\r]");
  EXPECT_EQ(Regex("^b$", "a\nb\nc"), "a\n[b]\nc");
  EXPECT_EQ(Regex("\\d{1,3}+", "12345"), "[12345]");  // repeats, not possessive
  EXPECT_EQ(Regex("\\d{,2}x", "123x"), "1[23x]");
  EXPECT_EQ(Regex("a{2}?b", "b aab"), "[b] [aab]");        // optional, not reluctant
  EXPECT_EQ(Regex("a(?i)b|c", "aB c aC"), "[aB] c [aC]");  // encloses the branches
  EXPECT_EQ(Regex("[a[x-z]]+", "qaxyq"), "q[axy]q");
  EXPECT_EQ(Regex("[\\p{L}&&[^\\p{Han}]]+", "ab\xE4\xB8\xAD"), "[ab]\xE4\xB8\xAD");
  EXPECT_EQ(Regex("[^a-c&&b-d]+", "abcd"), "[a]bc[d]");
  EXPECT_EQ(Regex("\\p{^Letter}", "a1"), "a[1]");
  EXPECT_EQ(Regex("[[:punct:]]", "a+"), "a[+]");
  EXPECT_EQ(Regex("\\p{Punct}", "a+!"), "a+[!]");
  EXPECT_EQ(Regex("a{x", "a{x"), "[a{x]");
  EXPECT_EQ(Regex("[]a]", "]ab"), "[]][a]b");
  EXPECT_EQ(Regex("[a-]", "-ab"), "[-][a]b");
  EXPECT_EQ(Regex("(a)\\1", "aab"), "[aa]b");
  EXPECT_EQ(Regex("\\u00e9|\\x{4e2d}|\\x41",
                  "\xC3\xA9\xE4\xB8\xAD"
                  "A"),
            "[\xC3\xA9][\xE4\xB8\xAD][A]");
  EXPECT_EQ(Regex("(?i:'s)", "'\xC5\xBF"), "['\xC5\xBF]");  // U+017F folds to s
}

TEST(TextPatternTest, RefusesWhatHasNoCounterpart) {
  for (const char* pattern :
       {"(?~a)", "(*FAIL)", "(?{x})", "\\y", "(?a)b", "[a", "(a", "a)", "\\x{D800}", "\\p{No_Such}",
        "[[:nothing:]]", "*a", "\\xFF", "[z-a]", "\\12"})
    EXPECT_THROW((void)TextPattern::Regex(pattern), Error) << pattern;
  EXPECT_THROW((void)TextPattern::Regex(std::string(1000, '(')), Error);
  EXPECT_THROW((void)TextPattern::Regex(std::string(1000, '[')), Error);
  EXPECT_THROW((void)TextPattern::Regex(std::string(1 << 17, 'a')), Error);
}

TEST(TextPatternTest, ACatastrophicPatternIsAnError) {
  const TextPattern pattern = TextPattern::Regex("(?:a|a)*(?:a|b)*(?:c|d)");
  EXPECT_THROW((void)pattern.ReplaceAll(std::string(60, 'a'), ""), Error);
}

TEST(TextPatternTest, LongMatchesNeedNoStack) {
  const std::string text(200000, 'a');
  EXPECT_EQ(TextPattern::Regex("(?:a|b)+").ReplaceAll(text, "x"), "x");
}

TEST(TextPatternTest, YoungCharactersHaveTheirCategory) {
  // Unicode 15 letter (CJK Extension H) and 16 digit (Garay): older tables call them unassigned.
  EXPECT_EQ(Regex("\\p{L}+", "a\xF0\xB1\x8D\x90"), "[a\xF0\xB1\x8D\x90]");
  EXPECT_EQ(Regex("\\p{N}", "\xF0\x90\xB5\x80"), "[\xF0\x90\xB5\x80]");
}

}  // namespace
}  // namespace rollcast
