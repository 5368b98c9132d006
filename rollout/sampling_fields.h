// Names, limits and meaning of the sampling parameters, for whoever reads them from a user.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/sampling.h"
#include "rollout/field.h"

namespace rollcast {

constexpr double kMaxSeed = 9007199254740992.0;  // 2^53: exact in JSON and in a double

/// The table [sampling]. The seed is no part of it: it belongs to the run.
void ListSampling(FieldList& list, SamplingParams& params);

/// Keys that OverrideSampling takes.
bool IsSamplingKey(std::string_view key);

/// Overrides in `params` what `json` names, an object of the keys of [sampling] and "seed".
/// Throws Error that names the key, what is expected and what was given, or the nearest known key;
/// `vocab_size` > 0: stop ids must be below.
void OverrideSampling(std::string_view json, int32_t vocab_size, SamplingParams& params);

}  // namespace rollcast
