// Any bytes must give tensors that can be dequantised or an Error.
#include <cstdint>
#include <span>
#include <vector>

#include "engine/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> image(data, size);
  try {
    std::vector<float> values;
    for (const rollcast::GgufTensor& tensor :
         rollcast::ParseGguf(std::as_bytes(image), "fuzz").tensors) {
      values.resize(static_cast<size_t>(tensor.shape.NumElements()));
      rollcast::DequantizeGguf(tensor, values);
    }
  } catch (const rollcast::Error&) {
  }
  return 0;
}
