#include "rollout/unicode.h"

#include <gtest/gtest.h>

#include "rollout/byte_alphabet.h"
#include "rollout/unicode_age.h"

namespace rollcast {
namespace {

std::string Lossy(std::string_view bytes) {
  std::string out;
  EXPECT_EQ(AppendLossyUtf8(bytes, true, out), bytes.size());
  EXPECT_TRUE(IsValidUtf8(out));
  return out;
}

TEST(UnicodeTest, PutsATextOnOneLine) {
  EXPECT_EQ(OneLine("a\tb\r\n\x1b[1mc\xC2\x85\xFF\x7f"),
            "a\\x09b\\x0d\\n\\x1b[1mc\\x85\xEF\xBF\xBD\\x7f");
  EXPECT_EQ(OneLine("\xC3\xA9\xC3\xA9", 2), "\xC3\xA9\xC3\xA9");
  EXPECT_EQ(OneLine("\xC3\xA9\xC3\xA9x", 2), "\xC3\xA9\xC3\xA9 ...");
  EXPECT_EQ(OneLine(""), "");
}

TEST(UnicodeTest, ReplacesMaximalSubparts) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(Lossy("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"),
            "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(Lossy("\xE2\x82"), r);  // unfinished: one
  EXPECT_EQ(Lossy("\xE2\x82x"), r + "x");
  EXPECT_EQ(Lossy("\xF0\x9F\x98"), r);
  EXPECT_EQ(Lossy("\xC0\x80"), r + r);  // overlong
  EXPECT_EQ(Lossy("\xE0\x80\x80"), r + r + r);
  EXPECT_EQ(Lossy("\xED\xA0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(Lossy("\xF4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
  EXPECT_EQ(Lossy("\xF5"), r);
  EXPECT_EQ(Lossy("\x80\xBF"), r + r);
}

TEST(UnicodeTest, LeavesAnUnfinishedEnd) {
  std::string out;
  EXPECT_EQ(AppendLossyUtf8("ab\xF0\x9F\x98", false, out), 2u);
  EXPECT_EQ(out, "ab");
  out.clear();
  EXPECT_EQ(AppendLossyUtf8("\xF0\x9F\xF0\x9F", false, out), 2u);
  EXPECT_EQ(out, kReplacementCharacter);
}

TEST(UnicodeTest, EveryCodePointSurvives) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text;
    AppendUtf8(c, text);
    ASSERT_TRUE(IsValidUtf8(text));
    ASSERT_EQ(FirstCodePoint(text).value, c);
    ASSERT_EQ(FirstCodePoint(text).length, text.size());
    ASSERT_EQ(LastCodePoint("x" + text).value, c);
    std::string stand_in;
    AppendUtf8(StandIn(c), stand_in);
    ASSERT_EQ(stand_in.size(), text.size());
  }
}

TEST(UnicodeTest, ByteAlphabetIsOneToOne) {
  std::string bytes;
  for (int b = 0; b < 256; ++b) bytes += static_cast<char>(b);
  const std::string text = ToByteAlphabet(bytes);
  EXPECT_EQ(CountCodePoints(text), 256u);
  EXPECT_EQ(FromByteAlphabet(text), bytes);
  EXPECT_EQ(ToByteAlphabet(" a\n"),
            "\xC4\xA0"
            "a\xC4\x8A");
  EXPECT_EQ(FromByteAlphabet("a b"), std::nullopt);
}

TEST(UnicodeTest, Normalizes) {
  EXPECT_EQ(ToNormalForm("e\xCC\x81", NormalForm::kNfc), "\xC3\xA9");
  EXPECT_EQ(ToNormalForm("\xC3\xA9", NormalForm::kNfd), "e\xCC\x81");
  EXPECT_EQ(ToNormalForm("\xEF\xAC\x81", NormalForm::kNfkc), "fi");
  EXPECT_EQ(ToNormalForm("\xEF\xAC\x81", NormalForm::kNfc), "\xEF\xAC\x81");
  EXPECT_EQ(ToNormalForm("\xEA\xB0\x81", NormalForm::kNfd), "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8");
  // U+08D3 has a combining class since Unicode 11 and stays where it is; U+05B0 does not.
  EXPECT_EQ(ToNormalForm("a\xCC\x81\xD6\xB0", NormalForm::kNfd), "a\xD6\xB0\xCC\x81");
  EXPECT_EQ(ToNormalForm("a\xCC\x81\xE0\xA3\x93", NormalForm::kNfd), "a\xCC\x81\xE0\xA3\x93");
}

TEST(UnicodeTest, Classes) {
  EXPECT_TRUE(IsWhitespace(0x3000) && IsWhitespace(0x85) && IsWhitespace('\v'));
  EXPECT_FALSE(IsWhitespace(0x180E) || IsWhitespace(0x200B) || IsWhitespace(0x1C));
  EXPECT_TRUE(IsWordCharacter('_') && IsWordCharacter(0x301) && IsWordCharacter(0x200D));
  EXPECT_FALSE(IsWordCharacter(0xB2) || IsWordCharacter('-'));
  EXPECT_TRUE(IsNumeric(0xB2) && IsNumeric(0x2167) && IsNumeric(0x10D40));
  EXPECT_TRUE(IsPunctuation('$') && IsPunctuation(0x3002));
  EXPECT_FALSE(IsPunctuation(0x20AC));
  std::string lower;
  AppendLowercase(0x130, lower);
  AppendLowercase(0x3A3, lower);
  EXPECT_EQ(lower, "i\xCC\x87\xCF\x83");
}

}  // namespace
}  // namespace rollcast
