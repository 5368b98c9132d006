// Builds GGUF file images for tests, valid or not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rollcast::testing {

/// Appends the pieces of a file in the order in which the format has them. Every call appends as
/// told, so that a test can lie. Little-endian hosts only.
class GgufImage {
 public:
  template <class T>
  GgufImage& Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  GgufImage& Text(const std::string& text) {
    Put<uint64_t>(text.size());
    bytes_ += text;
    return *this;
  }
  GgufImage& Raw(const std::string& raw) {
    bytes_ += raw;
    return *this;
  }
  GgufImage& Header(uint64_t tensors, uint64_t values, uint32_t version = 3) {
    return Raw("GGUF").Put(version).Put(tensors).Put(values);
  }
  GgufImage& StringValue(const std::string& key, const std::string& value) {
    return Text(key).Put<uint32_t>(8).Text(value);
  }
  GgufImage& U32Value(const std::string& key, uint32_t value) {
    return Text(key).Put<uint32_t>(4).Put(value);
  }
  GgufImage& F32Value(const std::string& key, float value) {
    return Text(key).Put<uint32_t>(6).Put(value);
  }
  GgufImage& BoolValue(const std::string& key, uint8_t value) {
    return Text(key).Put<uint32_t>(7).Put(value);
  }
  GgufImage& StringsValue(const std::string& key, const std::vector<std::string>& values) {
    Text(key).Put<uint32_t>(9).Put<uint32_t>(8).Put<uint64_t>(values.size());
    for (const std::string& value : values) Text(value);
    return *this;
  }
  GgufImage& I32sValue(const std::string& key, const std::vector<int32_t>& values) {
    Text(key).Put<uint32_t>(9).Put<uint32_t>(5).Put<uint64_t>(values.size());
    for (int32_t value : values) Put(value);
    return *this;
  }
  /// `extents` contiguous first, as in the file.
  GgufImage& Tensor(const std::string& name, const std::vector<uint64_t>& extents, uint32_t type,
                    uint64_t offset) {
    Text(name).Put(static_cast<uint32_t>(extents.size()));
    for (uint64_t extent : extents) Put(extent);
    return Put(type).Put(offset);
  }
  GgufImage& Align(size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace rollcast::testing
