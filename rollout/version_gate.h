// Whether a completion may be returned: which policies sampled it, against the one live now.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/policy_version.h"

namespace rollcast {

enum class GateVerdict : uint8_t {
  kAccept,
  kOverLag,        // the oldest token is more than the limit behind the live version
  kFutureVersion,  // a token claims a version that is not live yet
  kBadSpans,       // the spans do not cover the completion once each, or their versions fall
};

struct GateDecision {
  GateVerdict verdict = GateVerdict::kAccept;
  PolicyVersion lag = 0;      // live version less that of the oldest token; 0 with bad spans
  PolicyVersion over_by = 0;  // kOverLag: versions beyond the limit
  std::string reason;         // empty when accepted

  bool accepted() const { return verdict == GateVerdict::kAccept; }
};

/// Pure. The policy lag of a completion is that of its oldest token, so that a limit holds for each
/// token. An empty completion has lag 0. `live` is only meaningful to the caller while no update
/// can commit: decide and hand over under one PolicyLease (rollout/rollout_buffer.h).
/// REQUIRES: max_policy_lag >= 0.
[[nodiscard]] GateDecision VersionGate(std::span<const PolicySpan> spans, int64_t completion_length,
                                       PolicyVersion live, PolicyVersion max_policy_lag);

}  // namespace rollcast
