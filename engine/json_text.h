// JSON as files of users hold it: strict, with errors that a user can act on. Every JSON text that
// is read from outside goes through here.
#pragma once

#include <string>
#include <string_view>

namespace rollcast {

constexpr int kMaxJsonDepth = 256;

/// What becomes of an integer literal that 64 bits do not hold.
enum class LargeIntegers {
  kAsFloat,  // the nearest float64, as most readers have it
  kRefused,  // an Error: where the number goes on to somebody else
};

/// Parses one JSON value (RFC 8259, UTF-8). Beyond what is no JSON it refuses an object that names
/// a key twice, of which most readers keep the last without a word, and nesting deeper than
/// kMaxJsonDepth. Throws Error "<name>:<line>:<column>: <what>"; `text` begins at `first_line` of
/// what `name` stands for, columns count characters from 1.
/// `Json` is nlohmann::json, which headers do not name.
template <class Json>
Json ParseJson(std::string_view text, std::string_view name, size_t first_line = 1,
               LargeIntegers large_integers = LargeIntegers::kAsFloat);

/// What a user calls the kind of `value`: "null", "true or false", "a number", "a string", "an
/// array", "an object".
template <class Json>
const char* JsonKind(const Json& value);

}  // namespace rollcast
