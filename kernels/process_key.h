// What tells this process from every other of the host.
#pragma once

#include <cstdint>

namespace rollcast {

/// The process id alone is not enough: processes of two containers may have the same one.
struct ProcessKey {
  int64_t process = 0;
  uint64_t random = 0;
  bool operator==(const ProcessKey&) const = default;

  static ProcessKey Mine();
};

}  // namespace rollcast
