// A place in a parsed JSON document that knows its own path, so that every complaint names it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace rollcast {

/// A value inside a JsonDocument, which must outlive it. A value of another type than asked for is
/// an Error that names the document and the path.
class JsonNode {
 public:
  bool IsNull() const;
  bool IsString() const;
  bool IsArray() const;
  bool IsObject() const;
  const std::string& String() const;
  bool Bool() const;
  double Number() const;
  /// An integer within [low, high].
  int64_t Int(int64_t low, int64_t high) const;

  /// The member `key`; an Error if there is none.
  JsonNode At(std::string_view key) const;
  /// The member `key`; nothing if it is missing or null.
  std::optional<JsonNode> Find(std::string_view key) const;
  bool BoolOr(std::string_view key, bool fallback) const;
  void ForEachMember(const std::function<void(const std::string&, const JsonNode&)>& visit) const;

  /// Elements of an array.
  size_t size() const;
  JsonNode operator[](size_t index) const;

  /// Throws Error: "<document>: <path> <what>".
  [[noreturn]] void Fail(std::string_view what) const;
  /// Throws Error for a part of a kind that is not implemented.
  [[noreturn]] void FailUnsupported() const;

 private:
  friend class JsonDocument;
  JsonNode(const void* value, const std::string* document, std::string path)
      : value_(value), document_(document), path_(std::move(path)) {}
  [[noreturn]] void FailType(std::string_view expected) const;

  const void* value_;  // the JSON library's own type, kept out of this header
  const std::string* document_;
  std::string path_;
};

class JsonDocument {
 public:
  /// `name` is what errors call the document. Throws what ParseJson throws.
  JsonDocument(std::string name, std::string_view text);
  JsonNode Root() const;

 private:
  std::string name_;
  std::shared_ptr<const void> value_;
};

}  // namespace rollcast
