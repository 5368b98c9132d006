#include "engine/json_text.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/check.h"

namespace rollcast {

namespace {

using nlohmann::json;

// Reads a text and tells how far reading has come.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** seen) : at_(at), seen_(seen) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *seen_ = ++at_;
    return *this;
  }
  bool operator==(const Cursor& other) const { return at_ == other.at_; }
  bool operator!=(const Cursor& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** seen_;
};

constexpr const char* kEndsEarly = "the text ends before the value does";

// "[json.exception.parse_error.101] parse error at line 1, column 4: syntax error while parsing
// value - unexpected ']'; expected ..." to "unexpected ']'; expected ...".
std::string Cleaned(std::string_view what, std::string_view text, size_t end) {
  if (what.find("ill-formed UTF-8") != std::string_view::npos)
    return "a byte that is no valid UTF-8";
  if (what.find("unexpected end of input") != std::string_view::npos ||
      (end >= text.size() && what.find("missing closing quote") != std::string_view::npos))
    return kEndsEarly;
  if (const size_t at = what.find("] "); what.starts_with('[') && at != std::string_view::npos)
    what.remove_prefix(at + 2);
  if (const size_t at = what.find(" - "); at != std::string_view::npos) what.remove_prefix(at + 3);
  std::string out(what);
  // What was read last can be long, and bytes of it no text.
  if (const size_t at = out.find("; last read: "); at != std::string::npos) {
    const size_t expected = out.find("; expected ", at);
    out.erase(at, expected == std::string::npos ? std::string::npos : expected - at);
  }
  return out;
}

// Builds the value; its methods are what the parser calls, and false ends the parsing.
class Builder {
 public:
  Builder(std::string_view text, std::string_view name, size_t first_line,
          LargeIntegers large_integers)
      : text_(text),
        name_(name),
        first_line_(first_line),
        large_integers_(large_integers),
        seen_(text.data()) {}

  json Parse() {
    // Versions of the parser have other words for it.
    if (text_.empty()) Fail(StrCat("not valid JSON: ", kEndsEarly));
    // Which the parser would take for the end of the text.
    if (const size_t at = text_.find('\0'); at != std::string_view::npos) {
      seen_ = text_.data() + at + 1;
      Fail("not valid JSON: a byte of zero");
    }
    const char* end = text_.data() + text_.size();
    const bool whole = json::sax_parse(Cursor(text_.data(), &seen_), Cursor(end, &seen_), this);
    RC_CHECK(whole);
    return std::move(root_);
  }

  bool null() { return Put(nullptr); }
  bool boolean(bool value) { return Put(value); }
  bool number_integer(json::number_integer_t value) { return Put(value); }
  bool number_unsigned(json::number_unsigned_t value) { return Put(value); }
  bool number_float(json::number_float_t value, const std::string& literal) {
    if (large_integers_ == LargeIntegers::kRefused &&
        literal.find_first_of(".eE") == std::string::npos) {
      // To its first character: the one behind the number has been read, if there is one.
      const bool ends_text = seen_ == text_.data() + text_.size() && literal.back() == seen_[-1];
      seen_ -= literal.size() - (ends_text ? 1 : 0);
      Fail(StrCat("the integer ", literal, " is beyond 64 bits; write it as a text, in quotes"));
    }
    return Put(value);
  }
  bool string(std::string& value) { return Put(std::move(value)); }
  bool binary(json::binary_t& value) { return Put(std::move(value)); }
  bool start_object(size_t) { return Open(json::object()); }
  bool start_array(size_t) { return Open(json::array()); }
  bool key(std::string& value) {
    auto& object = open_.back()->get_ref<json::object_t&>();
    const auto [place, is_new] = object.try_emplace(std::move(value));
    if (!is_new) Fail("an object names \"" + place->first + "\" twice");
    member_ = &place->second;
    return true;
  }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool parse_error(size_t position, const std::string&, const json::exception& e) {
    const auto end = static_cast<size_t>(seen_ - text_.data());
    // A number ends with the character behind it, which `position` leaves out.
    seen_ = text_.data() + std::min(position, text_.size());
    Fail("not valid JSON: " + Cleaned(e.what(), text_, end));
  }

 private:
  template <class Value>
  bool Put(Value&& value) {
    Place(json(std::forward<Value>(value)));
    return true;
  }
  bool Open(json value) {
    json* place = Place(std::move(value));
    open_.push_back(place);
    if (open_.size() > kMaxJsonDepth)
      Fail(StrCat("nested too deeply, more than ", kMaxJsonDepth, " levels"));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  json* Place(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *member_ = std::move(value);
    return member_;
  }

  // At the last character that was read.
  [[noreturn]] void Fail(const std::string& what) const {
    const size_t end = std::min(static_cast<size_t>(seen_ - text_.data()), text_.size());
    const std::string_view before = text_.substr(0, end > 0 ? end - 1 : 0);
    const size_t line_begin =
        before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    const auto is_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
    const auto lines = std::count(before.begin(), before.end(), '\n');
    const auto characters = std::count_if(before.begin() + static_cast<std::ptrdiff_t>(line_begin),
                                          before.end(), is_character);
    throw Error(StrCat(name_, ":", first_line_ + static_cast<size_t>(lines), ":", characters + 1,
                       ": ", what));
  }

  const std::string_view text_, name_;
  const size_t first_line_;
  const LargeIntegers large_integers_;
  const char* seen_;  // behind the last character that was read
  json root_;
  std::vector<json*> open_;  // objects and arrays around the next value
  json* member_ = nullptr;   // of open_.back(), whose key has been read
};

}  // namespace

template <class Json>
Json ParseJson(std::string_view text, std::string_view name, size_t first_line,
               LargeIntegers large_integers) {
  return Builder(text, name, first_line, large_integers).Parse();
}

template <class Json>
const char* JsonKind(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "true or false";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a string";
  return value.is_array() ? "an array" : "an object";
}

template json ParseJson<json>(std::string_view, std::string_view, size_t, LargeIntegers);
template const char* JsonKind<json>(const json&);

}  // namespace rollcast
