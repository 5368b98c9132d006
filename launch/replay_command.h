// rollcast replay: generates trajectories again and compares the bits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <ostream>

#include "launch/config.h"

namespace rollcast {

struct ReplayOptions {
  std::filesystem::path file;
  int64_t version =
      0;  // the policy version that model.path holds; only rows drawn wholly under it are replayed
  int64_t limit = -1;  // rows replayed at most; -1 = all
};

/// Generates each replayable row of the file from (weights, seed, prompt ids, sampling parameters)
/// and compares its tokens and log-probabilities bit for bit; of an aborted row, the part that
/// there is. Prints what differs to `out`. Returns 0 when nothing does, else 1. Throws Error when
/// the file is not ours, when it was made with other weights than those of model.path (checked for
/// version 0), or when it holds no row of the version.
int RunReplay(const Config& config, const ReplayOptions& options, std::ostream& out);

}  // namespace rollcast
