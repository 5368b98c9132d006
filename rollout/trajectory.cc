#include "rollout/trajectory.h"

#include <cstring>
#include <iterator>

#include "kernels/check.h"

namespace rollcast {

namespace {

constexpr const char* kOutcomes[] = {"completed", "aborted", "scoring_failed",
                                     "over_lag",  "refused", "failed"};
constexpr const char* kFinishReasons[] = {"none", "stop_id", "stop_string", "length", "abort"};
static_assert(std::size(kOutcomes) == EnumCount(Outcome{}));
static_assert(std::size(kFinishReasons) == EnumCount(FinishReason{}));

template <class Enum, size_t kCount>
Enum Parse(const char* what, const char* const (&names)[kCount], const char* name) {
  std::string choices;
  for (size_t i = 0; i < kCount; ++i) {
    if (std::strcmp(name, names[i]) == 0) return static_cast<Enum>(i);
    choices += StrCat(i == 0 ? "" : i + 1 == kCount ? " or " : ", ", names[i]);
  }
  throw Error(StrCat(what, " \"", name, "\": expected ", choices));
}

}  // namespace

const char* Name(Outcome outcome) { return kOutcomes[static_cast<int>(outcome)]; }
const char* Name(FinishReason reason) { return kFinishReasons[static_cast<int>(reason)]; }

Outcome ParseOutcome(const char* name) { return Parse<Outcome>("outcome", kOutcomes, name); }
FinishReason ParseFinishReason(const char* name) {
  return Parse<FinishReason>("finish reason", kFinishReasons, name);
}

}  // namespace rollcast
