#include "trainer_bridge/roles.h"

#include <algorithm>
#include <optional>

#include "trainer_bridge/device_choice.h"
#include "trainer_bridge/wire.h"

namespace rollcast {

constexpr int EnumCount(Role) { return 2; }

const char* Name(Role role) { return role == Role::kTrainer ? "trainer" : "worker"; }

std::vector<int> Roles::With(Role role) const {
  std::vector<int> found;
  for (size_t i = 0; i < ranks.size(); ++i)
    if (ranks[i].role == role) found.push_back(static_cast<int>(i));
  return found;
}

int Roles::trainer() const {
  const std::vector<int> trainers = With(Role::kTrainer);
  return trainers.empty() ? -1 : trainers.front();
}

namespace {

struct WireRankInfo {
  RankInfo info;
  static void Fields(auto& self, auto&& visit) {
    visit(self.info.role, self.info.rollcast_version, self.info.config_digest, self.info.host,
          self.info.device, self.info.gpus);
  }
};

struct HelloMessage {
  static constexpr MessageType kType = MessageType::kHello;
  WireRankInfo rank;
  static void Fields(auto& self, auto&& visit) { visit(self.rank); }
};

struct RolesMessage {
  static constexpr MessageType kType = MessageType::kRoles;
  std::string error;
  std::vector<WireRankInfo> ranks;
  static void Fields(auto& self, auto&& visit) { visit(self.error, self.ranks); }
};

/// Empty when the ranks can work together.
std::string Mismatch(const std::vector<RankInfo>& ranks) {
  int trainers = 0, workers = 0;
  const RankInfo& first = ranks.front();
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankInfo& other = ranks[i];
    if (other.rollcast_version != first.rollcast_version)
      return StrCat("rank ", i, " (", other.host, ") runs rollcast ", other.rollcast_version,
                    ", rank 0 (", first.host, ") ", first.rollcast_version);
    if (other.config_digest != first.config_digest)
      return StrCat(
          "rank ", i, " (", other.host,
          ") has another configuration than rank 0 (settings that all ranks share: digest ",
          other.config_digest, " against ", first.config_digest, ")");
    ++(other.role == Role::kTrainer ? trainers : workers);
  }
  if (workers == 0) return "the job has no worker rank";
  if (trainers > 1) return StrCat("the job has ", trainers, " trainer ranks, expected at most 1");
  return {};
}

}  // namespace

Roles ExchangeRoles(Communicator& communicator, const RankInfo& mine, Deadline deadline) {
  const int size = communicator.size();
  std::vector<Message> early;  // of ranks that are through already
  Backoff backoff;
  // Waits for one message of `type`; nullopt at the deadline.
  const auto wait_for = [&](MessageType type) -> std::optional<Message> {
    for (;;) {
      if (std::optional<Message> message = communicator.Poll()) {
        if (TypeOf(message->bytes) == type) return message;
        early.push_back(std::move(*message));
        backoff.Reset();
      } else if (Clock::now() >= deadline) {
        return std::nullopt;
      } else {
        backoff.Wait();
      }
    }
  };

  RolesMessage table;
  if (communicator.rank() == 0) {
    std::vector<std::optional<WireRankInfo>> heard(static_cast<size_t>(size));
    heard[0] = WireRankInfo{mine};
    for (int missing = size - 1; missing > 0;) {
      std::optional<Message> message = wait_for(MessageType::kHello);
      if (!message) break;
      auto& slot = heard[static_cast<size_t>(message->source)];
      if (!slot) --missing;
      slot = Decode<HelloMessage>(message->bytes).rank;
    }
    const auto missing = std::find(heard.begin(), heard.end(), std::nullopt);
    const int late = missing == heard.end() ? -1 : static_cast<int>(missing - heard.begin());
    if (late >= 0) {
      table.error = StrCat("rank ", late, " did not report to rank 0 at start in time");
    } else {
      std::vector<RankInfo> ranks;
      for (auto& rank : heard) ranks.push_back(std::move(rank->info));
      table.error = Mismatch(ranks);
      if (table.error.empty()) {
        try {
          AssignDevices(ranks);
        } catch (const Error& error) {
          table.error = error.what();
        }
      }
      for (RankInfo& info : ranks) table.ranks.push_back({std::move(info)});
    }
    for (int rank = 1; rank < size; ++rank) communicator.Send(rank, Encode(table));
    if (late >= 0) {
      communicator.Flush(Clock::now() + std::chrono::seconds(1));
      throw PeerLost(late, table.error);
    }
  } else {
    communicator.Send(0, Encode(HelloMessage{{mine}}));
    // Rank 0 may use its whole deadline, and says then who was late.
    deadline += std::chrono::seconds(2);
    std::optional<Message> message = wait_for(MessageType::kRoles);
    if (!message) throw PeerLost(0, "rank 0 did not answer at start in time");
    table = Decode<RolesMessage>(message->bytes);
  }
  if (!table.error.empty()) {
    communicator.Flush(Clock::now() + std::chrono::seconds(1));
    throw Error(table.error);
  }
  for (Message& message : early) communicator.Defer(std::move(message));
  Roles roles;
  for (WireRankInfo& rank : table.ranks) roles.ranks.push_back(std::move(rank.info));
  return roles;
}

}  // namespace rollcast
