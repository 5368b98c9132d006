// UTF-8 and the character classes that tokenizer.json relies on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rollcast {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

/// The character at the front of `text` and its length in bytes.
/// REQUIRES: `text` is not empty and is valid UTF-8.
struct CodePoint {
  char32_t value;
  size_t length;
};
CodePoint FirstCodePoint(std::string_view text);
CodePoint LastCodePoint(std::string_view text);

/// REQUIRES: `code_point` is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string& out);
size_t CountCodePoints(std::string_view text);

bool IsValidUtf8(std::string_view text);

/// Appends `bytes` to `out` with U+FFFD for each maximal ill-formed subpart (Unicode 15, section
/// 3.9; what Rust's `from_utf8_lossy` and Python's "replace" do). Unless `at_end`, an unfinished
/// character at the end is left alone. Returns the number of bytes consumed.
size_t AppendLossyUtf8(std::string_view bytes, bool at_end, std::string& out);

/// The first `limit` characters of `text` on one line: control characters are escaped ("\n",
/// "\x1b"), ill-formed UTF-8 is replaced, and " ..." stands for what is left out.
std::string OneLine(std::string_view text, size_t limit = std::string_view::npos);

/// White_Space of Unicode.
bool IsWhitespace(char32_t code_point);
/// \w of UTS 18: alphabetic, mark, decimal digit, connector punctuation, join control.
bool IsWordCharacter(char32_t code_point);
/// General category N.
bool IsNumeric(char32_t code_point);
/// ASCII punctuation and symbols, and general category P.
bool IsPunctuation(char32_t code_point);
/// General category M.
bool IsMark(char32_t code_point);

/// Appends the unconditional full lower-case mapping.
void AppendLowercase(char32_t code_point, std::string& out);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
/// REQUIRES: `text` is valid UTF-8.
std::string ToNormalForm(std::string_view text, NormalForm form);

}  // namespace rollcast
