// TOML text to (key, value, line); the only file that sees the TOML library is toml_reader.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rollout/field.h"

namespace rollcast {

struct TomlEntry {
  std::string key;        // dotted path, "engine.max_running"; a table's own name for kTable
  bool is_table = false;  // a [table] header, also one without keys
  FieldValue value;
  int line = 0;
};

/// All entries in the order of their lines. Throws Error "<name>:<line>: ..." for what is not TOML.
std::vector<TomlEntry> ReadToml(std::string_view text, const std::string& name);

/// One value, as in `--set key=value`; what is none is of no field's type.
FieldValue ReadTomlValue(std::string_view text);

}  // namespace rollcast
