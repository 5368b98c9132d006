// Who is a trainer and who a rollout rank in one world, agreed once at start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer_bridge/communicator.h"

namespace rollcast {

enum class Role : uint8_t { kTrainer, kWorker };
const char* Name(Role role);

/// What a rank says of itself at start.
struct RankInfo {
  Role role = Role::kWorker;
  std::string rollcast_version;
  std::string settings;  // that all ranks must share: "key = value" lines, one key a line
  std::string host;
};

/// Every rank's RankInfo, by rank. `settings` are equal, and left out.
struct Roles {
  std::vector<RankInfo> ranks;

  /// Ranks with `role`, ascending.
  std::vector<int> With(Role role) const;
  /// -1 when the job has no trainer.
  int trainer() const;
  std::vector<int> workers() const { return With(Role::kWorker); }
};

/// Called by every rank once, before any other message. Rank 0 gathers and answers. Throws Error on
/// every rank when versions or settings differ (naming each key, its values and the ranks that have
/// them), when there is no worker, or more than one trainer; PeerLost, naming the rank, when one
/// has not come by `deadline`.
Roles ExchangeRoles(Communicator& communicator, const RankInfo& mine, Deadline deadline);

}  // namespace rollcast
