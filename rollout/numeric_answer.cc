#include "rollout/numeric_answer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

namespace rollcast {

namespace {

constexpr double kRelativeTolerance = 1e-6;
constexpr std::string_view kSpaces = " \t\r\n\f\v";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// Typographic and LaTeX spellings to plain ones: U+2212 to '-', "{,}" to ",", "\$" to "$", "\%" to
/// "%", thin spaces to nothing.
std::string Plain(std::string_view text) {
  constexpr std::pair<std::string_view, std::string_view> kSpellings[] = {
      {"\u2212", "-"}, {"{,}", ","}, {"\\$", "$"}, {"\\%", "%"}, {"\\!", ""}, {"\\,", ""}};
  std::string plain;
  plain.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const auto* spelling = std::find_if(std::begin(kSpellings), std::end(kSpellings), [&](auto& s) {
      return text.substr(i, s.first.size()) == s.first;
    });
    if (spelling == std::end(kSpellings)) {
      plain += text[i++];
      continue;
    }
    plain += spelling->second;
    i += spelling->first.size();
  }
  return plain;
}

size_t SkipSpaces(std::string_view text, size_t i) {
  while (i < text.size() && kSpaces.find(text[i]) != std::string_view::npos) ++i;
  return i;
}

/// A number found in text, [begin, end) with its sign.
struct Found {
  WrittenNumber number;
  size_t begin = 0, end = 0;
};

/// Digits, thousands separators, decimals and exponent at `i`; no sign. Leaves `i` behind them,
/// also where they are beyond float64 and so no number.
std::optional<double> ReadUnsigned(std::string_view text, size_t& i) {
  size_t at = i;
  std::string digits;
  while (at < text.size() && IsDigit(text[at])) digits += text[at++];
  // A comma separates thousands when one to three digits stand before the first one and exactly
  // three after each.
  if (!digits.empty() && digits.size() <= 3) {
    const auto is_group = [&](size_t p) {
      return p + 3 < text.size() && text[p] == ',' && IsDigit(text[p + 1]) &&
             IsDigit(text[p + 2]) && IsDigit(text[p + 3]) &&
             (p + 4 == text.size() || !IsDigit(text[p + 4]));
    };
    for (; is_group(at); at += 4) digits += text.substr(at + 1, 3);
  }
  if (at + 1 < text.size() && text[at] == '.' && IsDigit(text[at + 1])) {
    digits += text[at++];
    while (at < text.size() && IsDigit(text[at])) digits += text[at++];
  }
  if (digits.empty()) return std::nullopt;
  if (at + 1 < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    size_t exponent = at + 1;
    if (exponent + 1 < text.size() && (text[exponent] == '-' || text[exponent] == '+')) ++exponent;
    if (IsDigit(text[exponent])) {
      size_t end = exponent;
      while (end < text.size() && IsDigit(text[end])) ++end;
      if (end == text.size() || !IsLetter(text[end])) {
        digits += 'e';
        // from_chars takes no plus sign.
        if (text[at + 1] == '-') digits += '-';
        digits += text.substr(exponent, end - exponent);
        at = end;
      }
    }
  }
  if (digits[0] == '.') digits.insert(digits.begin(), '0');
  i = at;
  double value = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || rest != digits.data() + digits.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

/// None where the divisor is 0 or the quotient beyond float64: infinity is near every number.
std::optional<double> Quotient(double a, double b) {
  const double quotient = a / b;
  return std::isfinite(quotient) ? std::optional(quotient) : std::nullopt;
}

/// The sign before position `i`, a currency sign between allowed; `begin` moves to its start. A
/// hyphen is a sign unless something that it could subtract from touches it: 7-5 is 7 and 5.
double SignBefore(std::string_view text, size_t& begin) {
  size_t at = begin;
  if (at > 0 && text[at - 1] == '$') --at;
  begin = at;
  if (at == 0 || (text[at - 1] != '-' && text[at - 1] != '+')) return 1;
  const size_t sign = at - 1;
  if (sign > 0) {
    const char before = text[sign - 1];
    if (IsDigit(before) || IsLetter(before) || before == ')' || before == ']' || before == '}')
      return 1;
    if (before == '$') --at;
  }
  begin = at - 1;
  return text[sign] == '-' ? -1 : 1;
}

/// "\frac{a}{b}" and its siblings at `i`.
std::optional<double> ReadLatexFraction(std::string_view text, size_t& i) {
  size_t at = i;
  const auto starts = [&](std::string_view name) { return text.substr(at, name.size()) == name; };
  if (starts("\\frac"))
    at += 5;
  else if (starts("\\dfrac") || starts("\\tfrac"))
    at += 6;
  else
    return std::nullopt;
  double parts[2];
  for (double& part : parts) {
    if (at >= text.size() || text[at] != '{') return std::nullopt;
    at = SkipSpaces(text, at + 1);
    double sign = 1;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) sign = text[at++] == '-' ? -1 : 1;
    const auto value = ReadUnsigned(text, at);
    if (!value) return std::nullopt;
    at = SkipSpaces(text, at);
    if (at >= text.size() || text[at] != '}') return std::nullopt;
    ++at;
    part = sign * *value;
  }
  const auto quotient = Quotient(parts[0], parts[1]);
  if (quotient) i = at;
  return quotient;
}

/// True where a number and a slash stand before position `i`.
bool IsDivisor(std::string_view text, size_t i) {
  const size_t slash = text.find_last_not_of(kSpaces, i - 1);
  if (i == 0 || slash == std::string_view::npos || slash == 0 || text[slash] != '/') return false;
  const size_t number = text.find_last_not_of(kSpaces, slash - 1);
  return number != std::string_view::npos && IsDigit(text[number]);
}

/// The first number at or after `from`.
std::optional<Found> NextNumber(std::string_view text, size_t from) {
  for (size_t i = from; i < text.size(); ++i) {
    Found found{.number = {}, .begin = i, .end = i};
    if (const auto fraction = ReadLatexFraction(text, found.end)) {
      found.number.value = SignBefore(text, found.begin) * *fraction;
      return found;
    }
    const bool starts =
        IsDigit(text[i]) || (text[i] == '.' && i + 1 < text.size() && IsDigit(text[i + 1]) &&
                             (i == 0 || !IsDigit(text[i - 1])));
    if (!starts) continue;
    // A digit that belongs to a word (x2, CO2) is no number.
    const bool in_word = i > 0 && IsLetter(text[i - 1]);
    const auto value = ReadUnsigned(text, found.end);
    if (in_word || !value) {
      i = std::max(i, found.end - 1);
      while (i + 1 < text.size() && IsDigit(text[i + 1])) ++i;
      continue;
    }
    found.number.value = SignBefore(text, found.begin) * *value;
    // a/b is a fraction; a/b/c (a date) is not, and neither is its b/c.
    const size_t slash = SkipSpaces(text, found.end);
    if (slash < text.size() && text[slash] == '/' && !IsDivisor(text, found.begin)) {
      size_t end = SkipSpaces(text, slash + 1);
      const auto divisor = ReadUnsigned(text, end);
      const size_t next = SkipSpaces(text, end);
      const bool more = next < text.size() && text[next] == '/';
      const auto quotient = divisor ? Quotient(found.number.value, *divisor) : std::nullopt;
      if (quotient && !more) {
        found.number.value = *quotient;
        found.end = end;
      }
    }
    const size_t sign = SkipSpaces(text, found.end);
    if (sign < text.size() && text[sign] == '%') {
      found.number.percent = true;
      found.end = sign + 1;
    }
    return found;
  }
  return std::nullopt;
}

std::optional<WrittenNumber> LastNumber(std::string_view text) {
  std::optional<WrittenNumber> last;
  for (auto found = NextNumber(text, 0); found; found = NextNumber(text, found->end))
    last = found->number;
  return last;
}

/// What the last \boxed{...} whose braces close holds.
std::optional<std::string_view> LastBox(std::string_view text) {
  constexpr std::string_view kBox = "\\boxed";
  struct Brace {
    size_t inside;
    bool box;
  };
  std::vector<Brace> open;
  std::optional<std::string_view> last;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{') {
      open.push_back({i + 1, text.substr(0, i).ends_with(kBox)});
    } else if (text[i] == '}' && !open.empty()) {
      const Brace brace = open.back();
      open.pop_back();
      if (brace.box && (!last || text.data() + brace.inside > last->data()))
        last = text.substr(brace.inside, i - brace.inside);
    }
  }
  return last;
}

bool IsExactInteger(double value) {
  constexpr double kExact = 9007199254740992;  // 2^53: from there on float64 leaves integers out
  return std::abs(value) <= kExact && value == std::trunc(value);
}

bool Near(double a, double b) {
  // 12345678 is not 12345679: the tolerance is for what has been rounded.
  if (IsExactInteger(a) && IsExactInteger(b)) return a == b;
  return std::abs(a - b) <= kRelativeTolerance * std::max(std::abs(a), std::abs(b));
}

}  // namespace

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

std::optional<WrittenNumber> ParseNumber(std::string_view text) {
  const std::string plain = Plain(Trim(text));
  const auto found = NextNumber(plain, 0);
  if (!found || found->begin != 0 || found->end != plain.size()) return std::nullopt;
  return found->number;
}

std::optional<WrittenNumber> FinalNumber(std::string_view text) {
  const std::string plain = Plain(text);
  if (const auto box = LastBox(plain)) return LastNumber(*box);
  if (const size_t marker = plain.rfind("####"); marker != std::string::npos) {
    const auto found = NextNumber(std::string_view(plain).substr(marker + 4), 0);
    if (!found) return std::nullopt;
    return found->number;
  }
  return LastNumber(plain);
}

bool SameNumber(WrittenNumber a, WrittenNumber b) {
  if (Near(a.value, b.value)) return true;
  if (a.percent == b.percent) return false;
  return Near(a.percent ? a.value / 100 : a.value, b.percent ? b.value / 100 : b.value);
}

bool SameAnswer(std::string_view a, std::string_view b) {
  if (Trim(a) == Trim(b)) return true;
  const auto x = ParseNumber(a), y = ParseNumber(b);
  return x && y && SameNumber(*x, *y);
}

}  // namespace rollcast
