#include "engine/policy_version.h"

#include <cstring>

#include "kernels/check.h"

namespace rollcast {

namespace {
constexpr const char* kNames[] = {"keep", "recompute", "drain", "abort"};
}  // namespace

const char* Name(InFlightPolicy policy) { return kNames[static_cast<int>(policy)]; }

InFlightPolicy ParseInFlightPolicy(const char* name) {
  for (int i = 0; i < 4; ++i)
    if (std::strcmp(name, kNames[i]) == 0) return static_cast<InFlightPolicy>(i);
  throw Error(StrCat("in-flight policy \"", name, "\": expected keep, recompute, drain or abort"));
}

}  // namespace rollcast
