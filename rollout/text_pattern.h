// What tokenizer.json calls a pattern: a literal string or a regular expression.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rollout/json_node.h"
#include "rollout/polling.h"

namespace rollcast {

/// Immutable and thread-safe.
class TextPattern {
 public:
  /// A part of a text: bytes [begin, end), and whether the pattern matches there.
  struct Part {
    size_t begin, end;
    bool match;
  };

  static TextPattern Literal(std::string text);
  /// `pattern` in Oniguruma's syntax; an Error says what is wrong with it.
  static TextPattern Regex(std::string_view pattern);
  /// {"String": ...} or {"Regex": ...}
  static TextPattern FromJson(const JsonNode& node);

  ~TextPattern();
  TextPattern(TextPattern&&) noexcept;
  TextPattern& operator=(TextPattern&&) noexcept;

  /// Cuts `text`, valid UTF-8, into parts that cover it: the matches from left to right and what
  /// lies between them. An Error if the expression takes too many steps on this text. A match is a
  /// unit of work for `polling`.
  void Cut(std::string_view text, std::vector<Part>& parts, Polling* polling = nullptr) const;
  std::string ReplaceAll(std::string_view text, std::string_view with) const;

  /// The string that it matches, if it is a literal one.
  const std::string* literal() const { return compiled_ ? nullptr : &text_; }

 private:
  struct Compiled;
  TextPattern();
  /// The next match at or after `from`, or false.
  bool Find(std::string_view text, size_t from, void* match_data, size_t& begin, size_t& end) const;

  std::string text_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace rollcast
