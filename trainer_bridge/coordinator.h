// Hands prompts to the ranks that ask, and gates and returns what comes back.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer_bridge/communicator.h"
#include "trainer_bridge/job_messages.h"

namespace rollcast {

struct CoordinatorOptions {
  std::vector<int> workers;  // rollout ranks; the first one is the coordinator's own
  int trainer = -1;          // -1: none, the caller submits and takes
  int max_tries = 3;         // times a completion is generated before it is given up as over lag
  PolicyVersion max_policy_lag = 1;
  std::chrono::duration<double> heartbeat{5};
  std::chrono::duration<double> silence{15};   // a rank unheard for so long is lost
  std::chrono::duration<double> startup{600};  // to load weights, for every rank
  std::chrono::duration<double> stop_grace{
      5};  // after Stop, for the ranks to return what they have
};

/// The coordinator's surroundings. All are called on the bridge thread.
struct CoordinatorSeams {
  std::function<void(int rank, JobMessage message)> send;  // also to the own rank
  std::function<PolicyVersion()> live_version;
  /// Puts whole groups on disk; throws when it cannot. Null: no file.
  std::function<void(std::span<const Trajectory>)> append;
  /// For the log: something that a user wants to know. Null: nobody listens.
  std::function<void(const std::string&)> warn;
};

/// Pure protocol: no thread, no clock and no socket of its own. All calls on the bridge thread.
///
/// Exactly one outcome: a sample is queued, or assigned to one (rank, attempt), or done; a result
/// that does not fit its assignment is dropped.
///
/// The gate is atomic with the return: TakeReady reads the live version once, gates, appends to
/// the file, and the reply is on its way before the bridge thread does anything else; an update
/// commits on the bridge thread, too. The trainer never publishes while it waits for a reply to
/// Collect, so the version that was live here is live in the trainer when the reply arrives.
class Coordinator {
 public:
  Coordinator(CoordinatorOptions options, CoordinatorSeams seams, Clock::time_point now);

  /// A message of any kind has come from `rank`.
  void Heard(int rank, Clock::time_point now);
  /// Takes what is for the coordinator. Throws Error when the job cannot go on: it says why and
  /// names the rank at fault.
  void Handle(int source, JobMessage message, Clock::time_point now);
  /// Heartbeats, silence, collect deadlines. Called at least every heartbeat / 4.
  void Tick(Clock::time_point now);
  /// `rank` is gone; its work is given to others once. Throws Error when it was the trainer, this
  /// rank, or the last worker.
  void Lose(int rank, const std::string& why, Clock::time_point now);

  /// Every rank has said that it is ready; nothing is handed out before.
  bool started() const { return started_; }

  void Submit(std::vector<GroupWork> groups);
  /// Ends every group that is pending now: what no rank has begun is done at once, as aborted for
  /// `reason`; the ranks return the rest, finished or aborted, and none of it is made again.
  void Abort(const std::string& reason);
  /// Abort, after which nothing more is handed out. The ranks are waited for as long as stop_grace.
  /// A second call does nothing. REQUIRES: a job without a trainer.
  void Stop(const std::string& reason, Clock::time_point now);
  /// Of the first Stop; empty before.
  const std::string& stop_reason() const { return stop_reason_; }
  /// Up to `max_groups` whole groups, in the order of completion, gated against the live version
  /// and on disk; fewer when they come to more than `max_bytes` in all, and of a group that does so
  /// by itself as many as fit, the rest with the next calls. Over-lag samples with tries left are
  /// queued again instead.
  std::vector<Trajectory> TakeReady(int max_groups, size_t max_bytes = kMessageBytes);
  /// Groups submitted and not returned.
  int pending_groups() const { return static_cast<int>(groups_.size()); }
  JobStats stats() const;

 private:
  enum class SlotState : uint8_t { kQueued, kAssigned, kDone };
  struct Slot {
    SlotState state = SlotState::kQueued;
    int rank = -1;
    int32_t attempt = 0;
    bool lost_before = false;
    Trajectory result{};
  };
  struct Group {
    GroupWork work;  // without samples
    std::vector<Slot> slots;
    int done = 0;
    size_t taken = 0;     // slots that TakeReady has given out
    std::string aborted;  // by Abort: why; empty otherwise
  };
  // Samples of one group that go to one rank together.
  struct Unit {
    uint64_t group_id;
    int32_t attempt;
    std::vector<int32_t> samples;
  };
  struct Worker {
    bool ready = false, lost = false;
    bool has_pulled = false;
    std::optional<int> room{};  // of a pull that waits for work
    int assigned = 0;           // completions
    int64_t hand_outs = 0;
    std::string why{};  // lost
    Clock::time_point heard{};
    WorkerBeat beat{};
  };
  struct Collect {
    uint64_t request;
    int groups;
    Clock::time_point deadline;
  };

  void OnReady(int source, const ReadyMessage& message);
  void OnResults(int source, ResultsMessage message);
  void HandOut();
  // The rank that a piece of so many samples goes to, or -1.
  int Neediest(int samples) const;
  void GateReady(PolicyVersion live);
  void TryReply(Clock::time_point now);
  void Resolve(Group& group, Slot& slot, Trajectory result);
  // `sample` is done, as aborted, without tokens.
  void ResolveAborted(Group& group, int32_t sample, const std::string& message);
  void AskForScore(ScoreWork work);
  int alive() const;

  const CoordinatorOptions options_;
  const CoordinatorSeams seams_;
  std::map<int, Worker> workers_;                         // by rank
  std::map<uint64_t, Group> groups_;                      // by id, submitted and not returned
  std::deque<Unit> queue_;                                // waits for a rank
  std::deque<uint64_t> ready_;                            // groups whose samples are all done
  std::map<uint64_t, std::pair<int, ScoreWork>> scores_;  // asked for, with the rank that has it
  std::optional<Collect> collect_;
  std::string stop_reason_;
  Clock::time_point stop_deadline_{};
  Clock::time_point trainer_heard_;
  const Clock::time_point startup_deadline_;
  Clock::time_point last_tick_;
  Clock::time_point next_beat_;
  int reference_rank_ = -1;
  std::optional<ReadyMessage> reference_;  // what the first rank that was ready had
  bool started_ = false;
  int64_t returned_ = 0, regenerated_ = 0, lost_ = 0;
};

}  // namespace rollcast
