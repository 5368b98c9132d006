#include "launch/row_filter.h"

#include <charconv>
#include <cstring>
#include <type_traits>

#include "kernels/check.h"
#include "rollout/trajectory_columns.h"

namespace rollcast {

namespace {

template <class T>
constexpr bool kIsList =
    std::is_same_v<T, std::vector<int32_t>> || std::is_same_v<T, std::vector<std::string>>;

// Calls visit for every field that a filter may name.
template <class Row, class Lag, class Visit>
void VisitFields(Row& row, Lag& lag, const Visit& visit) {
  VisitTrajectoryColumns(row, [&](const char* name, auto& member) {
    if constexpr (!kIsList<std::remove_cvref_t<decltype(member)>>) visit(name, member);
  });
  visit("policy_lag", lag);
}

std::string Trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

template <class T>
constexpr bool kIsText = std::is_same_v<T, std::string>;
template <class T>
constexpr bool kIsOrdered = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

/// "is a number: use =, !=, <, <=, > or >=".
template <class T>
std::string WhatFits() {
  if (kIsText<T>) return "is a text: use =, != or ~";
  if (kIsOrdered<T>) return "is a number: use =, !=, <, <=, > or >=";
  if (std::is_same_v<T, bool>) return "is true or false: use = or !=";
  return "is one of a few names: use = or !=";
}

template <class T>
T ParseValue(const std::string& filter, const std::string& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (value == "true" || value == "1") return true;
    if (value == "false" || value == "0") return false;
    throw Error(StrCat("filter \"", filter, "\": expected true or false, found \"", value, "\""));
  } else if constexpr (std::is_same_v<T, Outcome>) {
    return ParseOutcome(value.c_str());
  } else if constexpr (std::is_same_v<T, FinishReason>) {
    return ParseFinishReason(value.c_str());
  } else {
    T number{};
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, number);
    if (error != std::errc() || stop != end)
      throw Error(StrCat("filter \"", filter, "\": expected ",
                         std::is_integral_v<T> ? "a whole number" : "a number", ", found \"", value,
                         "\""));
    return number;
  }
}

}  // namespace

std::vector<std::string> FilterFields() {
  std::vector<std::string> names;
  TrajectoryRow row;
  PolicyVersion lag = 0;
  VisitFields(row, lag, [&](const char* name, auto&) { names.push_back(name); });
  return names;
}

RowFilter::RowFilter(const std::string& text) {
  const size_t at = text.find_first_of("=!<>~");
  const auto bad = [&](const std::string& why) {
    throw Error(StrCat("filter \"", text, "\": ", why));
  };
  if (at == std::string::npos) bad("expected FIELD OP VALUE with one of = != < <= > >= ~");
  struct Name {
    const char* text;
    Op op;
  };
  constexpr Name kOps[] = {{"==", Op::kEqual},        {"!=", Op::kNotEqual}, {"<=", Op::kLessEqual},
                           {">=", Op::kGreaterEqual}, {"=", Op::kEqual},     {"<", Op::kLess},
                           {">", Op::kGreater},       {"~", Op::kContains}};
  bool known = false;
  for (const Name& name : kOps) {
    if (known || text.compare(at, std::strlen(name.text), name.text) != 0) continue;
    known = true;
    op_ = name.op;
    value_ = Trim(text.substr(at + std::strlen(name.text)));
  }
  if (!known) bad("expected one of = != < <= > >= ~");
  field_ = Trim(text.substr(0, at));

  bool found = false;
  VisitFields(wanted_, wanted_lag_, [&](const char* name, auto& member) {
    using T = std::remove_cvref_t<decltype(member)>;
    if (field_ != name) return;
    found = true;
    const bool compares = op_ == Op::kEqual || op_ == Op::kNotEqual;
    const bool fits = compares || (op_ == Op::kContains ? kIsText<T> : kIsOrdered<T>);
    if (!fits) bad(StrCat(field_, " ", WhatFits<T>()));
    member = ParseValue<T>(text, value_);
  });
  if (found) return;
  std::string names;
  for (const std::string& name : FilterFields()) names += StrCat(names.empty() ? "" : ", ", name);
  bad(StrCat("there is no field \"", field_, "\"; there are ", names));
}

template <class T>
bool RowFilter::Compare(const T& a, const T& b) const {
  switch (op_) {
    case Op::kEqual:
      return a == b;
    case Op::kNotEqual:
      return a != b;
    case Op::kLess:
      return a < b;
    case Op::kLessEqual:
      return a <= b;
    case Op::kGreater:
      return a > b;
    case Op::kGreaterEqual:
      return a >= b;
    case Op::kContains:
      if constexpr (std::is_same_v<T, std::string>) return a.find(b) != std::string::npos;
  }
  return false;
}

bool RowFilter::Passes(const TrajectoryRow& row) const {
  // Both rows are visited in step: the field's place in the one is its place in the other.
  const PolicyVersion lag = row.policy_lag();
  bool passes = false;
  VisitFields(row, lag, [&](const char* name, const auto& member) {
    if (field_ != name) return;
    VisitFields(wanted_, wanted_lag_, [&](const char* wanted_name, const auto& wanted) {
      if constexpr (std::is_same_v<decltype(member), decltype(wanted)>)
        if (field_ == wanted_name) passes = Compare(member, wanted);
    });
  });
  return passes;
}

}  // namespace rollcast
