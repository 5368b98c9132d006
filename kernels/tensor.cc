#include "kernels/tensor.h"

namespace rollcast {

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    case DType::kU64:
      return "uint64";
    case DType::kU8:
      return "uint8";
  }
  return "unknown";
}

std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += StrCat(i ? ", " : "", shape[i]);
  return text + "]";
}

}  // namespace rollcast
