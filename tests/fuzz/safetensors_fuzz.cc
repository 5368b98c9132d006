// Any bytes must give tensors within the image or an Error.
#include <cstdint>
#include <span>

#include "engine/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> image(data, size);
  try {
    size_t sum = 0;
    for (const rollcast::HostTensor& tensor :
         rollcast::ParseSafetensors(std::as_bytes(image), "fuzz"))
      for (std::byte byte : tensor.bytes) sum += std::to_integer<size_t>(byte);
    (void)sum;
  } catch (const rollcast::Error&) {
  }
  return 0;
}
