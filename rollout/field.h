// The fields of a struct of settings as data. A struct lists its fields once (ListFields in
// launch/config.cc, ListSampling in rollout/sampling_fields.h); reading from TOML and JSON, --set,
// --print-config, --help-config and the comparison of ranks all walk that list.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace rollcast {

/// What a value may be. Numbers: [min, max], or (min, max] when `above`. Strings: one of `choices`
/// when there are any.
struct Limits {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above = false;
  std::vector<std::string> choices;
};

inline Limits AtLeast(double min) { return {.min = min, .choices = {}}; }
inline Limits Above(double min) { return {.min = min, .above = true, .choices = {}}; }
inline Limits Between(double min, double max) { return {.min = min, .max = max, .choices = {}}; }
inline Limits OneOf(std::vector<std::string> choices) { return {.choices = std::move(choices)}; }

using FieldRef = std::variant<bool*, int*, int64_t*, uint64_t*, float*, double*, std::string*,
                              std::vector<int32_t>*, std::vector<std::string>*>;

struct Field {
  std::string key;  // "engine.max_running"
  FieldRef value;   // points into the struct that listed it
  Limits limits;
  std::string help;       // what it is, with its unit
  bool per_rank = false;  // ranks of one job may differ in it

  std::string_view table() const { return std::string_view(key).substr(0, key.find('.')); }
  std::string_view name() const { return std::string_view(key).substr(key.find('.') + 1); }
};

struct FieldTable {
  std::string name;
  std::string help;
};

/// Collects the fields of one Config; the pointers live as long as that Config stays where it is.
class FieldList {
 public:
  /// Fields added from here on belong to [name].
  void Table(std::string name, std::string help, bool per_rank = false) {
    per_rank_ = per_rank;
    tables_.push_back({std::move(name), std::move(help)});
  }
  template <class T>
  void Add(std::string_view name, T& value, std::string help, Limits limits = {}) {
    fields_.push_back({tables_.back().name + "." + std::string(name), &value, std::move(limits),
                       std::move(help), per_rank_});
  }
  /// As Add, for a field that ranks may differ in although the rest of the table is shared.
  template <class T>
  void AddPerRank(std::string_view name, T& value, std::string help, Limits limits = {}) {
    Add(name, value, std::move(help), std::move(limits));
    fields_.back().per_rank = true;
  }

  const std::vector<Field>& fields() const { return fields_; }
  const std::vector<FieldTable>& tables() const { return tables_; }
  /// Null when there is none.
  const Field* Find(std::string_view key) const;
  const FieldTable* FindTable(std::string_view name) const;
  /// The known key that a user who wrote `key` most likely meant; empty when nothing is near.
  std::string NearestKey(std::string_view key) const;
  std::string NearestTable(std::string_view name) const;

 private:
  std::vector<Field> fields_;
  std::vector<FieldTable> tables_;
  bool per_rank_ = false;
};

/// "an integer of at least 1", "a number above 0 and at most 1", "one of \"staged\", ...".
std::string Describe(const Field& field);
/// The value as TOML writes it; floats as the shortest text that reads back to the same bits.
std::string ToToml(const FieldRef& value);
/// A TOML basic string, quoted and escaped.
std::string TomlString(std::string_view text);
/// The shortest text that reads back to `value`, with a point or an exponent.
std::string FloatText(double value);
/// The nearest of `names`, or empty when more than a third of `wanted` would have to change.
std::string Nearest(std::string_view wanted, const std::vector<std::string>& names);
/// For behind "unknown key \"x\"": the nearest of `names`, or all of them.
std::string Suggestion(std::string_view wanted, const std::vector<std::string>& names);
/// Levenshtein distance in bytes.
int EditDistance(std::string_view a, std::string_view b);

/// A value as a file or a command line gives it, before it is known which field it is for.
struct FieldValue {
  std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<std::string>,
               std::monostate>
      value;         // monostate: a kind that no field has, or a mixed array
  std::string text;  // for messages
};

/// Stores `value` in the field. Throws Error "<key>: expected ..., got ..." when it is of another
/// type or out of the field's limits; the field is then unchanged.
void Assign(const Field& field, const FieldValue& value);

}  // namespace rollcast
