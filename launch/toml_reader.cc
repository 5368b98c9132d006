#include "launch/toml_reader.h"

#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

#include "kernels/check.h"

namespace rollcast {

namespace {

FieldValue ToValue(const toml::node& node) {
  FieldValue result;
  std::ostringstream text;
  node.visit([&](const auto& n) { text << n; });
  result.text = text.str();
  result.value = std::monostate();
  if (const auto* v = node.as_boolean()) result.value = v->get();
  if (const auto* v = node.as_integer()) result.value = v->get();
  if (const auto* v = node.as_floating_point()) {
    result.value = v->get();
    result.text = FloatText(v->get());
  }
  if (const auto* v = node.as_string()) {
    result.value = v->get();
    result.text = TomlString(v->get());
  }
  if (const auto* array = node.as_array()) {
    if (array->is_homogeneous<std::string>()) {
      std::vector<std::string> elements;
      for (const auto& element : *array) elements.push_back(element.as_string()->get());
      result.value = std::move(elements);
    } else if (array->empty() || array->is_homogeneous<int64_t>()) {
      std::vector<int64_t> elements;
      for (const auto& element : *array) elements.push_back(element.as_integer()->get());
      result.value = std::move(elements);
    }
  }
  return result;
}

constexpr int kMaxKeyParts = 256;

/// The line, from 1, with a key of more than kMaxKeyParts parts ("a.b.c"), or 0. The TOML library
/// nests a table a part, and its stack overflows where tens of thousands are to be destroyed.
int LineOfDeepKey(std::string_view text) {
  int line = 1, dots = 0;
  char quote = 0;  // of the string that we are in
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      dots = 0;
      quote = 0;
    } else if (quote != 0) {
      if (c == '\\' && quote == '"' && i + 1 < text.size() && text[i + 1] != '\n') ++i;
      if (c == quote) quote = 0;
    } else if (c == '#') {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '.' && ++dots >= kMaxKeyParts) {
      return line;
    } else if (c == '=' || c == ',' || c == '[' || c == '{') {
      dots = 0;  // what follows is another key, or a value
    }
  }
  return 0;
}

void Flatten(const toml::table& table, const std::string& prefix, std::vector<TomlEntry>& out) {
  for (const auto& [key, node] : table) {
    const std::string path = prefix + std::string(key.str());
    const int line = static_cast<int>(key.source().begin.line);
    if (const toml::table* child = node.as_table()) {
      out.push_back({path, true, {}, line});
      Flatten(*child, path + ".", out);
    } else {
      out.push_back({path, false, ToValue(node), line});
    }
  }
}

}  // namespace

std::vector<TomlEntry> ReadToml(std::string_view text, const std::string& name) {
  if (const int line = LineOfDeepKey(text); line > 0)
    throw Error(StrCat(name, ":", line, ": a key of more than ", kMaxKeyParts, " parts"));
  std::vector<TomlEntry> entries;
  try {
    Flatten(toml::parse(text, name), "", entries);
  } catch (const toml::parse_error& e) {
    throw Error(StrCat(name, ":", e.source().begin.line, ": not valid TOML: ", e.description()));
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const TomlEntry& a, const TomlEntry& b) { return a.line < b.line; });
  return entries;
}

FieldValue ReadTomlValue(std::string_view text) {
  try {
    const toml::table table =
        LineOfDeepKey(text) > 0 ? toml::table() : toml::parse("value = " + std::string(text));
    if (table.size() == 1) return ToValue(*table.get("value"));
  } catch (const toml::parse_error&) {
  }
  // What has the form of an integer is refused for one reason alone.
  const std::string_view digits = text.substr(text.starts_with('-') || text.starts_with('+'));
  const bool is_integer =
      !digits.empty() && digits.find_first_not_of("0123456789") == digits.npos && digits[0] != '0';
  return {std::monostate(),
          StrCat(text, is_integer ? ", an integer beyond 64 bits"
                                  : ", which is no TOML value (1, 0.5, true, \"text\", [1, 2])")};
}

}  // namespace rollcast
