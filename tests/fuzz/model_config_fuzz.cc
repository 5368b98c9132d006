// Any text must give a configuration or an Error.
#include <cstdint>
#include <string>

#include "engine/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    rollcast::ModelConfig::Parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const rollcast::Error&) {
  }
  return 0;
}
