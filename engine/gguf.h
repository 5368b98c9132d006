// Reader of GGUF files, the format of llama.cpp
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/mapped_file.h"
#include "kernels/tensor.h"

namespace rollcast {

/// Storage of a GGUF tensor. The quantised ones come in blocks of 32 elements of a row.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,  // scale * (nibble - 8)
  kQ4_1 = 3,  // scale * nibble + minimum
  kQ8_0 = 8,  // scale * int8
  kBF16 = 30,
};

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  Shape shape;  // row-major: the last extent is the contiguous one
  std::span<const std::byte> bytes;
};

/// A metadata value. Integers of every width become int64_t, floats double.
using GgufValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

struct GgufContent {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;  // in order of offset
};

/// Parses a whole file image, versions 2 and 3, and checks it as strictly as ParseSafetensors:
/// every length within the image, unique keys and names, known types, tensor ranges that follow one
/// another with nothing but alignment between. Throws Error that begins with `file`. The tensors
/// point into `image`.
GgufContent ParseGguf(std::span<const std::byte> image, const std::string& file);

/// Elements of `tensor` as float32. `out` has room for all of them.
void DequantizeGguf(const GgufTensor& tensor, std::span<float> out);

/// An open GGUF file; owns the mapping. Immutable, thread-safe to read.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  const GgufContent& content() const { return content_; }
  /// Null when there is no such tensor.
  const GgufTensor* Find(std::string_view name) const;

  /// Metadata by key: null or nothing when absent; Error naming the key when it has another type.
  const std::string* String(std::string_view key) const;
  const std::vector<std::string>* Strings(std::string_view key) const;
  const std::vector<int64_t>* Ints(std::string_view key) const;
  std::optional<int64_t> Int(std::string_view key) const;
  std::optional<double> Number(std::string_view key) const;
  std::optional<bool> Bool(std::string_view key) const;

 private:
  template <class T>
  const T* Get(std::string_view key, const char* expected) const;

  std::string name_;
  MappedFile file_;
  GgufContent content_;
};

}  // namespace rollcast
