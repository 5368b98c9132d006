#include "kernels/process_key.h"

#include <unistd.h>

#include <random>

namespace rollcast {

ProcessKey ProcessKey::Mine() {
  static const uint64_t random = [] {
    std::random_device source;
    return static_cast<uint64_t>(source()) << 32 | source();
  }();
  return {getpid(), random};
}

}  // namespace rollcast
