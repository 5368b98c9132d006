// Element types and the typed, shaped, non-owning view of memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/check.h"

namespace rollcast {

enum class DType : uint8_t { kF32, kF16, kBF16, kI32, kI64, kU64, kU8 };

/// Size of one element, in bytes.
constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI64:
    case DType::kU64:
      return 8;
    case DType::kU8:
      return 1;
  }
  return 0;
}

/// The name as PyTorch spells it: "float32", "bfloat16", ...
const char* Name(DType dtype);

class Shape;
/// "[2, 3]".
std::string ToString(const Shape& shape);

/// Up to four extents, row-major.
class Shape {
 public:
  static constexpr int kMaxRank = 4;
  /// Of the extents that are not 0, in any order; the bytes of a tensor then fit 64 bits.
  static constexpr int64_t kMaxElements = int64_t{1} << 60;

  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) {
    RC_CHECK_LE(static_cast<int>(extents.size()), kMaxRank);
    for (int64_t e : extents) extents_[rank_++] = e;
  }
  /// A shape that comes from outside. Throws Error, which begins with `what`, when there are more
  /// than kMaxRank extents, one is negative, or their product is beyond kMaxElements.
  template <class Iterator>
  static Shape From(Iterator begin, Iterator end, const std::string& what = "a tensor") {
    Shape shape;
    int64_t elements = 1;
    bool fits = true;
    for (; begin != end; ++begin) {
      if (shape.rank_ == kMaxRank)
        throw Error(StrCat(what, ": has more than ", kMaxRank, " dimensions"));
      const int64_t extent = *begin;
      shape.extents_[shape.rank_++] = extent;
      if (extent < 0) throw Error(StrCat(what, ": shape ", ToString(shape), " is negative"));
      if (extent == 0) continue;
      fits = fits && elements <= kMaxElements / extent;
      if (fits) elements *= extent;
    }
    if (!fits) throw Error(StrCat(what, ": shape ", ToString(shape), " is too large"));
    return shape;
  }

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return extents_[i]; }
  int64_t NumElements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= extents_[i];
    return n;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

/// A typed, shaped view of contiguous row-major memory; owns nothing. `data` may be device memory.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  bool empty() const { return data == nullptr; }
  size_t bytes() const { return static_cast<size_t>(shape.NumElements()) * SizeOf(dtype); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace rollcast
