#include "rollout/field.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "kernels/check.h"

namespace rollcast {

namespace {

template <class T>
constexpr bool kIsNumber = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

bool Within(double value, const Limits& limits) {
  // Written so that a NaN is out of every range.
  return (limits.above ? value > limits.min : value >= limits.min) && value <= limits.max &&
         std::isfinite(value);
}

/// The same for an integer, exact also beyond 2^53, where float64 rounds. Limits are floats that
/// int64 holds, or no limit for it.
bool Within(int64_t value, const Limits& limits) {
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  if (limits.min >= kEnd || limits.max < -kEnd) return false;
  const auto min = static_cast<int64_t>(std::ceil(std::max(limits.min, -kEnd)));
  const bool above = limits.above && static_cast<double>(min) == limits.min;
  return (above ? value > min : value >= min) &&
         (limits.max >= kEnd || value <= static_cast<int64_t>(std::floor(limits.max)));
}

template <class T>
std::string NumberText(T value) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  if constexpr (std::is_floating_point_v<T>)
    if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

template <class T>
std::string ElementText(const T& element) {
  if constexpr (std::is_same_v<T, std::string>)
    return TomlString(element);
  else
    return NumberText(element);
}

/// A limit as a person writes it: 65536, not 65536.0.
std::string LimitText(double limit) {
  constexpr double kFloatMax = std::numeric_limits<float>::max();
  std::string text =
      std::abs(limit) == kFloatMax ? NumberText(static_cast<float>(limit)) : NumberText(limit);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

/// The limits of a number of type T within what T holds; of float64, too, what float32 holds, as
/// the numbers go into float32 arithmetic.
template <class T>
Limits WithinType(Limits limits) {
  using Number = std::conditional_t<std::is_floating_point_v<T>, float, T>;
  limits.min = std::max(limits.min, static_cast<double>(std::numeric_limits<Number>::lowest()));
  limits.max = std::min(limits.max, static_cast<double>(std::numeric_limits<Number>::max()));
  return limits;
}

std::string RangeText(const Limits& limits) {
  if (limits.above)
    return StrCat(" above ", LimitText(limits.min), " and at most ", LimitText(limits.max));
  return StrCat(" from ", LimitText(limits.min), " to ", LimitText(limits.max));
}

/// What a field of type T is called, without its limits.
template <class T>
const char* TypeName() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, std::string>) return "a string";
  if constexpr (std::is_same_v<T, std::vector<int32_t>>) return "an array of integers";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "an array of strings";
  if constexpr (std::is_floating_point_v<T>) return "a number";
  return "an integer";
}

[[noreturn]] void Refuse(const Field& field, const FieldValue& value) {
  throw Error(StrCat(field.key, ": expected ", Describe(field), ", got ", value.text));
}

}  // namespace

std::string Nearest(std::string_view wanted, const std::vector<std::string>& names) {
  std::string best;
  int best_distance = std::clamp<int>(static_cast<int>(wanted.size()) / 3, 1, 3) + 1;
  for (const std::string& name : names) {
    const int distance = EditDistance(wanted, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

std::string Suggestion(std::string_view wanted, const std::vector<std::string>& names) {
  if (const std::string near = Nearest(wanted, names); !near.empty())
    return StrCat("; did you mean \"", near, "\"?");
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return "; there are " + all;
}

const Field* FieldList::Find(std::string_view key) const {
  for (const Field& field : fields_)
    if (field.key == key) return &field;
  return nullptr;
}

const FieldTable* FieldList::FindTable(std::string_view name) const {
  for (const FieldTable& table : tables_)
    if (table.name == name) return &table;
  return nullptr;
}

std::string FieldList::NearestKey(std::string_view key) const {
  const size_t dot = key.find('.');
  const std::string_view leaf = dot == std::string_view::npos ? key : key.substr(dot + 1);
  const std::string_view table = dot == std::string_view::npos ? "" : key.substr(0, dot);
  std::vector<std::string> siblings, all;
  for (const Field& field : fields_) {
    all.push_back(field.key);
    if (field.table() == table) siblings.emplace_back(field.name());
  }
  if (const std::string near = Nearest(leaf, siblings); !near.empty())
    return StrCat(table, ".", near);
  // The right name in the wrong table.
  for (const Field& field : fields_)
    if (field.name() == leaf) return field.key;
  return Nearest(key, all);
}

std::string FieldList::NearestTable(std::string_view name) const {
  std::vector<std::string> names;
  for (const FieldTable& table : tables_) names.push_back(table.name);
  return Nearest(name, names);
}

std::string Describe(const Field& field) {
  if (!field.limits.choices.empty()) {
    std::string text = "one of";
    for (size_t i = 0; i < field.limits.choices.size(); ++i)
      text += (i ? ", " : " ") + TomlString(field.limits.choices[i]);
    return text;
  }
  return std::visit(
      [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (kIsNumber<T>)
          return TypeName<T>() + RangeText(WithinType<T>(field.limits));
        else if constexpr (std::is_same_v<T, std::vector<int32_t>>)
          return TypeName<T>() + RangeText(WithinType<int32_t>(field.limits));
        else
          return std::string(TypeName<T>());
      },
      field.value);
}

std::string TomlString(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          constexpr const char* kHex = "0123456789ABCDEF";
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

std::string ToToml(const FieldRef& value) {
  return std::visit(
      [](auto* v) -> std::string {
        using T = std::remove_pointer_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>) {
          return *v ? "true" : "false";
        } else if constexpr (kIsNumber<T> || std::is_same_v<T, std::string>) {
          return ElementText(*v);
        } else {
          std::string out = "[";
          for (const auto& element : *v) out += (out.size() > 1 ? ", " : "") + ElementText(element);
          return out + "]";
        }
      },
      value);
}

std::string FloatText(double value) { return NumberText(value); }

int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

void Assign(const Field& field, const FieldValue& value) {
  std::visit(
      [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, bool>) {
          const bool* given = std::get_if<bool>(&value.value);
          if (!given) Refuse(field, value);
          *target = *given;
        } else if constexpr (std::is_integral_v<T>) {
          const int64_t* given = std::get_if<int64_t>(&value.value);
          if (!given || !std::in_range<T>(*given) || !Within(*given, field.limits))
            Refuse(field, value);
          *target = static_cast<T>(*given);
        } else if constexpr (std::is_floating_point_v<T>) {
          const int64_t* integer = std::get_if<int64_t>(&value.value);
          const double* real = std::get_if<double>(&value.value);
          if (!integer && !real) Refuse(field, value);
          const double wide = integer ? static_cast<double>(*integer) : *real;
          const Limits limits = WithinType<T>(field.limits);
          if (!Within(wide, limits)) Refuse(field, value);
          const T given = static_cast<T>(wide);
          if (!Within(given, limits)) Refuse(field, value);  // 1e-50 is not above 0 in float32
          *target = given;
        } else if constexpr (std::is_same_v<T, std::string>) {
          const std::string* given = std::get_if<std::string>(&value.value);
          const auto& choices = field.limits.choices;
          if (!given || (!choices.empty() &&
                         std::find(choices.begin(), choices.end(), *given) == choices.end()))
            Refuse(field, value);
          *target = *given;
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          const auto* given = std::get_if<std::vector<std::string>>(&value.value);
          const auto* empty = std::get_if<std::vector<int64_t>>(&value.value);
          if (!given && !(empty && empty->empty())) Refuse(field, value);
          *target = given ? *given : std::vector<std::string>();
        } else {
          const auto* given = std::get_if<std::vector<int64_t>>(&value.value);
          if (!given) Refuse(field, value);
          for (const int64_t element : *given)
            if (!std::in_range<int32_t>(element) || !Within(element, field.limits))
              Refuse(field, value);
          target->assign(given->begin(), given->end());
        }
      },
      field.value);
}

}  // namespace rollcast
