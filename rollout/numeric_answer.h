// Numbers in prose: where the answer of a solution stands, and when two answers are the same.
#pragma once

#include <optional>
#include <string_view>

namespace rollcast {

/// A number as written. `percent`: a percent sign followed; `value` is then the number before it.
struct WrittenNumber {
  double value = 0;
  bool percent = false;
  bool operator==(const WrittenNumber&) const = default;
};

/// The number that `text` as a whole is, surrounding spaces and a currency sign aside: signs,
/// thousands separators, decimals, exponents, a/b, \frac{a}{b}, percent.
std::optional<WrittenNumber> ParseNumber(std::string_view text);

/// The answer that a solution ends with: the last number inside the last complete \boxed{...}, else
/// the first number after the last "####", else the last number of all.
std::optional<WrittenNumber> FinalNumber(std::string_view text);

/// Equal within 1e-6 of the larger one; two integers up to 2^53 only when they are equal. When one
/// of the two is a percentage, 50% equals both 50 and 0.5.
bool SameNumber(WrittenNumber a, WrittenNumber b);

/// Equal as text (surrounding white space aside), or both are numbers as a whole and SameNumber.
bool SameAnswer(std::string_view a, std::string_view b);

/// `text` without surrounding ASCII white space.
std::string_view Trim(std::string_view text);

}  // namespace rollcast
