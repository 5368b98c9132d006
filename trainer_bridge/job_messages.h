// What the ranks of a job say to each other about rollouts. Weight updates have messages of their
// own (messages.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "rollout/group_work.h"
#include "rollout/trajectory.h"
#include "trainer_bridge/wire.h"

namespace rollcast {

void WireFields(auto& self, auto&& visit) requires
    std::same_as<std::remove_const_t<std::remove_reference_t<decltype(self)>>, GroupWork> {
  visit(self.group_id, self.prompt_id, self.prompt, self.text, self.add_special_tokens,
        self.reference, self.metadata, self.group_size, self.samples, self.attempt, self.sampling,
        self.in_flight, self.want_hidden);
}

void WireFields(auto& self, auto&& visit) requires
    std::same_as<std::remove_const_t<std::remove_reference_t<decltype(self)>>, ScoreWork> {
  visit(self.id, self.tokens, self.want_logits);
}

void WireFields(auto& self, auto&& visit) requires
    std::same_as<std::remove_const_t<std::remove_reference_t<decltype(self)>>, ScoreResult> {
  visit(self.id, self.error, self.logprob_raw, self.logits, self.version);
}

/// How one rollout rank is doing; counters since its start.
struct WorkerBeat {
  int32_t rank = 0;
  PolicyVersion version = 0;
  int32_t running = 0, waiting = 0, unscored = 0, room = 0;
  int32_t pages_used = 0, pages_total = 0;
  int64_t steps = 0, prefill_tokens = 0, decode_tokens = 0, cached_tokens = 0, preemptions = 0;
  double step_s = 0, score_s = 0;
  static void Fields(auto& self, auto&& visit) {
    visit(self.rank, self.version, self.running, self.waiting, self.unscored, self.room,
          self.pages_used, self.pages_total, self.steps, self.prefill_tokens, self.decode_tokens,
          self.cached_tokens, self.preemptions, self.step_s, self.score_s);
  }
};

/// How the job is doing, as the coordinator sees it.
struct JobStats {
  PolicyVersion version = 0;        // live on the coordinator's rank
  int32_t queued = 0;               // completions that no rank has yet
  int32_t assigned = 0;             // completions that a rank has
  int32_t ready = 0;                // groups that could be collected
  int64_t returned = 0;             // completions handed over since the start
  int64_t regenerated = 0;          // tries that were over lag
  int64_t lost = 0;                 // completions that a lost rank had
  std::vector<WorkerBeat> workers;  // of the ranks that are alive, as of their last heartbeat
  static void Fields(auto& self, auto&& visit) {
    visit(self.version, self.queued, self.assigned, self.ready, self.returned, self.regenerated,
          self.lost, self.workers);
  }
};

/// Between any two: "I am here".
struct BeatMessage {
  static constexpr MessageType kType = MessageType::kBeat;
  std::optional<WorkerBeat> beat;  // of a rollout rank
  static void Fields(auto& self, auto&& visit) { visit(self.beat); }
};

// From a rollout rank to the coordinator.

/// The weights are loaded and the engine stands.
struct ReadyMessage {
  static constexpr MessageType kType = MessageType::kWorkerReady;
  uint64_t manifest_digest = 0;
  uint64_t weights_digest = 0;
  static void Fields(auto& self, auto&& visit) { visit(self.manifest_digest, self.weights_digest); }
};

/// Room for that many completions; answered by one WorkMessage with groups once there is work.
struct PullMessage {
  static constexpr MessageType kType = MessageType::kPull;
  int32_t room = 0;
  // Hand-outs that the rank had received when it counted its room. A pull that crosses a hand-out
  // on the way is out of date, and dropped.
  int64_t hand_outs = 0;
  static void Fields(auto& self, auto&& visit) { visit(self.room, self.hand_outs); }
};

struct ResultsMessage {
  static constexpr MessageType kType = MessageType::kResults;
  std::vector<Trajectory> trajectories;
  std::vector<ScoreResult> scores;
  static void Fields(auto& self, auto&& visit) { visit(self.trajectories, self.scores); }
};

/// The job is to end early, and in good order: this rank has been told to.
struct StopMessage {
  static constexpr MessageType kType = MessageType::kStop;
  std::string message;
  static void Fields(auto& self, auto&& visit) { visit(self.message); }
};

// From the trainer to the coordinator.

struct SubmitMessage {
  static constexpr MessageType kType = MessageType::kSubmit;
  std::vector<GroupWork> groups;  // without samples: all of them are made
  static void Fields(auto& self, auto&& visit) { visit(self.groups); }
};

/// Answered by one CollectReply: when `groups` are ready, when nothing is left to wait for, or
/// after `timeout_s` with what there is. One without groups withdraws the one of the same
/// `request`, which is then answered at once, with nothing.
struct CollectMessage {
  static constexpr MessageType kType = MessageType::kCollect;
  uint64_t request = 0;
  int32_t groups = 0;
  double timeout_s = 0;
  static void Fields(auto& self, auto&& visit) { visit(self.request, self.groups, self.timeout_s); }
};

/// Answered by one ScoreReply.
struct ScoreMessage {
  static constexpr MessageType kType = MessageType::kScore;
  ScoreWork work;
  static void Fields(auto& self, auto&& visit) { visit(self.work); }
};

/// Answered by one StatsReply.
struct StatsMessage {
  static constexpr MessageType kType = MessageType::kStats;
  uint64_t request = 0;
  static void Fields(auto& self, auto&& visit) { visit(self.request); }
};

/// These ranks took no part in an update; later updates go without them, so they must go.
struct LeaveBehindMessage {
  static constexpr MessageType kType = MessageType::kLeaveBehind;
  std::vector<int32_t> ranks;
  std::string message;
  static void Fields(auto& self, auto&& visit) { visit(self.ranks, self.message); }
};

// From the coordinator.

/// To all: every rank is ready.
struct StartMessage {
  static constexpr MessageType kType = MessageType::kStart;
  uint64_t weights_digest = 0;
  static void Fields(auto& self, auto&& visit) { visit(self.weights_digest); }
};

struct WorkMessage {
  static constexpr MessageType kType = MessageType::kWork;
  std::vector<GroupWork> groups;  // answers a pull, unless empty
  std::vector<ScoreWork> scores;
  static void Fields(auto& self, auto&& visit) { visit(self.groups, self.scores); }
};

/// To a rank, and from the trainer to the coordinator, of all that is pending: what has not been
/// finished comes back as aborted, with the tokens that there are.
struct AbortMessage {
  static constexpr MessageType kType = MessageType::kAbort;
  std::string message;
  static void Fields(auto& self, auto&& visit) { visit(self.message); }
};

struct CollectReply {
  static constexpr MessageType kType = MessageType::kCollectReply;
  uint64_t request = 0;
  std::vector<Trajectory> trajectories;  // whole groups, gated and on disk
  int32_t groups = 0;
  int32_t pending_groups = 0;  // submitted and not returned, after this reply
  PolicyVersion live = 0;      // that the gate was applied against
  bool more = false;           // others are ready that would have made this reply too large
  static void Fields(auto& self, auto&& visit) {
    visit(self.request, self.trajectories, self.groups, self.pending_groups, self.live, self.more);
  }
};

struct ScoreReply {
  static constexpr MessageType kType = MessageType::kScoreReply;
  ScoreResult result;
  static void Fields(auto& self, auto&& visit) { visit(self.result); }
};

struct StatsReply {
  static constexpr MessageType kType = MessageType::kStatsReply;
  uint64_t request = 0;
  JobStats stats;
  static void Fields(auto& self, auto&& visit) { visit(self.request, self.stats); }
};

/// To the trainer: the job goes on without this rank.
struct RankLostMessage {
  static constexpr MessageType kType = MessageType::kRankLost;
  int32_t rank = 0;
  std::string message;
  static void Fields(auto& self, auto&& visit) { visit(self.rank, self.message); }
};

// From the trainer to the coordinator, and from it to all, the trainer included.

/// The job ends in good order; the trajectory file is complete when the trainer receives it.
struct FinishMessage {
  static constexpr MessageType kType = MessageType::kFinish;
  std::string stopped;  // why it ends early; empty: all is done
  static void Fields(auto& self, auto&& visit) { visit(self.stopped); }
};

/// The job ends badly: who receives it exits with a non-zero status. From a worker: this rank does.
struct FailMessage {
  static constexpr MessageType kType = MessageType::kFail;
  std::string message;  // names the rank at fault
  static void Fields(auto& self, auto&& visit) { visit(self.message); }
};

using JobMessage =
    std::variant<BeatMessage, ReadyMessage, PullMessage, ResultsMessage, SubmitMessage,
                 CollectMessage, ScoreMessage, StatsMessage, LeaveBehindMessage, StartMessage,
                 WorkMessage, CollectReply, ScoreReply, StatsReply, RankLostMessage, FinishMessage,
                 FailMessage, StopMessage, AbortMessage>;

/// About how many bytes `trajectory` takes in a message.
size_t WireBytes(const Trajectory& trajectory);
/// Messages of many trajectories are split at about this size: it bounds memory, and a message has
/// less than 2 GiB.
constexpr size_t kMessageBytes = size_t{64} << 20;

std::vector<std::byte> EncodeJob(const JobMessage& message);
/// None when `bytes` is a message of another kind. Throws Error when it is malformed.
std::optional<JobMessage> DecodeJob(std::span<const std::byte> bytes);

}  // namespace rollcast
