#include "rollout/version_gate.h"

#include "kernels/check.h"

namespace rollcast {

GateDecision VersionGate(std::span<const PolicySpan> spans, int64_t completion_length,
                         PolicyVersion live, PolicyVersion max_policy_lag) {
  RC_CHECK_GE(max_policy_lag, 0);
  const auto reject = [](GateVerdict verdict, std::string reason) {
    GateDecision decision;
    decision.verdict = verdict;
    decision.reason = std::move(reason);
    return decision;
  };
  int64_t covered = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const PolicySpan& span = spans[i];
    if (span.begin != covered || span.end <= span.begin)
      return reject(GateVerdict::kBadSpans, StrCat("policy span [", span.begin, ", ", span.end,
                                                   ") follows ", covered, " covered tokens"));
    if (i > 0 && span.version < spans[i - 1].version)
      return reject(GateVerdict::kBadSpans,
                    StrCat("policy version falls from ", spans[i - 1].version, " to ", span.version,
                           " at token ", span.begin));
    covered = span.end;
  }
  if (covered != completion_length)
    return reject(GateVerdict::kBadSpans, StrCat("policy spans cover ", covered, " of ",
                                                 completion_length, " completion tokens"));
  if (spans.empty()) return {};
  if (spans.front().version < 0)
    return reject(GateVerdict::kBadSpans, StrCat("policy version ", spans.front().version));
  if (spans.back().version > live)
    return reject(GateVerdict::kFutureVersion,
                  StrCat("sampled under policy version ", spans.back().version, ", but version ",
                         live, " is live"));
  GateDecision decision;
  decision.lag = live - spans.front().version;
  if (decision.lag <= max_policy_lag) return decision;
  decision.verdict = GateVerdict::kOverLag;
  decision.over_by = decision.lag - max_policy_lag;
  decision.reason = StrCat("sampled under policy version ", spans.front().version, ", version ",
                           live, " is live: policy lag ", decision.lag, ", ", decision.over_by,
                           " over max_policy_lag ", max_policy_lag);
  return decision;
}

}  // namespace rollcast
