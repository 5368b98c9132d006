// Which policy sampled what.
#pragma once

#include <cstdint>
#include <vector>

namespace rollcast {

/// Counter of committed weight updates; 0 is the checkpoint.
using PolicyVersion = int64_t;

/// Output tokens [begin, end) of one completion were sampled under `version`.
struct PolicySpan {
  int32_t begin = 0;
  int32_t end = 0;
  PolicyVersion version = 0;
  bool operator==(const PolicySpan&) const = default;
};

/// Extends `spans` by one token sampled under `version`.
inline void AppendToSpans(std::vector<PolicySpan>& spans, PolicyVersion version) {
  if (!spans.empty() && spans.back().version == version) {
    ++spans.back().end;
    return;
  }
  const int32_t begin = spans.empty() ? 0 : spans.back().end;
  spans.push_back({begin, begin + 1, version});
}

/// What happens to a sequence that is in flight when an update commits.
enum class InFlightPolicy : uint8_t {
  kKeep,       // continue on the KV of the old version; the spans show both
  kRecompute,  // prefill what has been generated again under the new weights, then continue
  kDrain,      // finish under the old version first, within a limit
  kAbort,      // return the partial completion, marked
};

const char* Name(InFlightPolicy policy);
/// Throws Error, naming the four choices, when `name` is none of them.
InFlightPolicy ParseInFlightPolicy(const char* name);

}  // namespace rollcast
