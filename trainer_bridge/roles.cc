#include "trainer_bridge/roles.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

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
    visit(self.info.role, self.info.rollcast_version, self.info.settings, self.info.host);
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

// Settings that are named in full when ranks differ.
constexpr size_t kMaxDifferences = 8;

using Settings = std::map<std::string, std::string>;  // key to value

Settings ParseSettings(const std::string& text) {
  Settings settings;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find(" = ");
    RC_CHECK(equals != std::string::npos, "settings line \"", line, "\"");
    settings[line.substr(0, equals)] = line.substr(equals + 3);
  }
  return settings;
}

/// "rank 2", "ranks 0-3, 7".
std::string RankList(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += StrCat(begin > 0 ? ", " : "", ranks[begin]);
    if (end - begin > 1) text += StrCat(end - begin == 2 ? ", " : "-", ranks[end - 1]);
    begin = end;
  }
  return text;
}

/// Every key that has more than one value, with its values and who has them; empty when there is
/// none.
std::string Differences(const std::vector<WireRankInfo>& ranks) {
  // Ranks with the same text are one: a job of a thousand ranks has one or two texts.
  std::map<std::string, std::vector<int>> texts;
  for (size_t i = 0; i < ranks.size(); ++i)
    texts[ranks[i].info.settings].push_back(static_cast<int>(i));
  if (texts.size() == 1) return {};

  std::map<std::string, std::map<std::string, std::vector<int>>> keys;  // key to value to ranks
  size_t count = 0;
  for (const auto& [text, with_text] : texts) {
    count += with_text.size();
    for (const auto& [key, value] : ParseSettings(text)) {
      std::vector<int>& with_value = keys[key][value];
      with_value.insert(with_value.end(), with_text.begin(), with_text.end());
    }
  }
  std::erase_if(keys, [&](const auto& entry) {
    return entry.second.size() == 1 && entry.second.begin()->second.size() == count;
  });
  std::string what;
  size_t named = 0;
  for (auto& [key, values] : keys) {
    if (++named > kMaxDifferences) continue;
    std::vector<std::pair<std::vector<int>, std::string>> by_rank;
    for (auto& [value, with_value] : values) {
      std::sort(with_value.begin(), with_value.end());
      by_rank.emplace_back(std::move(with_value), value);
    }
    std::sort(by_rank.begin(), by_rank.end());
    what += StrCat(what.empty() ? "" : "; ", key, " is ");
    for (size_t i = 0; i < by_rank.size(); ++i)
      what += StrCat(i > 0 ? ", " : "", by_rank[i].second, " on ", RankList(by_rank[i].first));
  }
  if (named > kMaxDifferences) what += StrCat("; and ", named - kMaxDifferences, " more keys");
  return what;
}

/// Empty when the ranks can work together.
std::string Mismatch(const std::vector<WireRankInfo>& ranks) {
  int trainers = 0, workers = 0;
  const RankInfo& first = ranks.front().info;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankInfo& other = ranks[i].info;
    if (other.rollcast_version != first.rollcast_version)
      return StrCat("rank ", i, " (", other.host, ") runs rollcast ", other.rollcast_version,
                    ", rank 0 (", first.host, ") ", first.rollcast_version);
    ++(other.role == Role::kTrainer ? trainers : workers);
  }
  if (const std::string what = Differences(ranks); !what.empty())
    return StrCat("the ranks have different configurations: ", what,
                  "; give all of them the same file and the same --set");
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
      for (auto& info : heard) table.ranks.push_back(std::move(*info));
      table.error = Mismatch(table.ranks);
      for (WireRankInfo& rank : table.ranks) rank.info.settings.clear();
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
