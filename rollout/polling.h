// How a long computation is asked to stop.
#pragma once

#include <cstddef>
#include <functional>

namespace rollcast {

/// Calls `poll`, which may be null, once in many units of work; what it throws ends the work. Used
/// from one thread.
class Polling {
 public:
  /// `poll` outlives it.
  explicit Polling(const std::function<void()>& poll) : poll_(poll) {}

  /// A unit takes well under 10 us: a step of a loop over characters or words.
  void DidOne() {
    if (++done_ % kInterval == 0 && poll_) poll_();
  }

 private:
  static constexpr size_t kInterval = 4096;
  const std::function<void()>& poll_;
  size_t done_ = 0;
};

}  // namespace rollcast
