// Which device each rank of a job computes on, agreed on at start.
#pragma once

#include <string>
#include <vector>

#include "trainer_bridge/roles.h"

namespace rollcast {

/// Replaces each rank's `device` ("auto", "cuda") by "cpu" or "cuda:N". A rank without
/// a GPU gets "cpu" for "auto". Beside a trainer, workers of one host take its GPUs from the last
/// downwards in the order of their ranks, so that a trainer finds the first ones free; in a job
/// without a trainer from the first upwards; where there are more workers than GPUs they share. A
/// trainer gets the first. Throws Error, naming the rank, when a device that is asked for is not
/// there.
void AssignDevices(std::vector<RankInfo>& ranks);

/// Empty when no two ranks of `roles` share a GPU; else a sentence that names those that do.
std::string SharedDevices(const Roles& roles);

}  // namespace rollcast
