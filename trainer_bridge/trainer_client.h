// The trainer's side of a job: submit prompts, collect trajectories, publish weights.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/mutex.h"
#include "trainer_bridge/communicator.h"
#include "trainer_bridge/job_messages.h"
#include "trainer_bridge/roles.h"
#include "trainer_bridge/weight_sync.h"

namespace rollcast {

struct TrainerClientOptions {
  std::chrono::duration<double> heartbeat{5};
  std::chrono::duration<double> silence{15};   // the coordinator unheard for so long is lost
  std::chrono::duration<double> startup{600};  // for all ranks to load their weights
};

/// One prompt of a batch, as the trainer submits it.
struct PromptGroup {
  std::string prompt_id;
  std::vector<int32_t> tokens;  // empty: `text` is encoded by the rank that does the work
  std::string text;
  bool add_special_tokens = false;
  std::string reference;  // for the scorer
  std::string metadata;
  std::optional<InFlightPolicy> in_flight;
  std::optional<SamplingParams> sampling;  // in the place of the batch's, seed included
};

struct Collected {
  std::vector<Trajectory> trajectories;  // whole groups, samples in order
  int groups = 0;
  int pending_groups = 0;  // submitted and not returned yet
  PolicyVersion live = 0;  // that the lag was checked against
};

/// Thread rule: one thread runs Serve (the bridge thread: all messages go through it, and it keeps
/// the heartbeat while the trainer computes); the calls below it come from any other thread, one at
/// a time: a call waits for the one before it, as long as its own timeout and a silent rank may
/// take. So no publish is ever under way while a Collect waits for its reply, and no update can
/// fall between the gate and the return.
///
/// Every call throws Error with the reason once the job is over, before it looks at its arguments,
/// and within its deadline when there is no answer. A duration that is not finite and above 0 (for
/// Collect: at least 0), or above 1e9 s, is an Error; the job goes on.
class TrainerClient {
 public:
  explicit TrainerClient(const TrainerClientOptions& options);
  ~TrainerClient();
  TrainerClient(const TrainerClient&) = delete;
  TrainerClient& operator=(const TrainerClient&) = delete;

  /// The bridge thread's loop. Returns after Finish. Throws Error when the job fails, with every
  /// call in progress woken; the caller then tells the coordinator (TellOfFailure). Updates go by
  /// the one of `transports` that is named `transport`. `check` (may be null) is called every round
  /// and throws to end the job.
  void Serve(Communicator& communicator, const Roles& roles,
             std::vector<WeightTransportMaker> transports, const std::string& transport,
             std::function<void()> check) RC_EXCLUDES(mutex_);

  /// Blocks until every rank has its weights.
  void WaitUntilStarted() RC_EXCLUDES(mutex_);

  /// Throws Error with the reason when the job is over. Never waits.
  void CheckRunning() const RC_EXCLUDES(mutex_);

  /// `group_size` is in [1, kMaxGroupSize]. Returns the group ids, in order. Never blocks on the
  /// ranks. `sampling.seed` is the run's.
  std::vector<uint64_t> Submit(const std::vector<PromptGroup>& prompts, int group_size,
                               const SamplingParams& sampling, bool want_hidden)
      RC_EXCLUDES(mutex_);

  /// Waits for `groups` groups; fewer come back after `timeout` (0: what is there) or when no more
  /// are pending.
  Collected Collect(int groups, std::chrono::duration<double> timeout) RC_EXCLUDES(mutex_);

  /// Ends what is pending and returns it, whole groups in the order in which they are done:
  /// completions that had been finished as they are, the others as aborted with the tokens that
  /// there are, over-lag ones without another try. After `timeout` returns what there is.
  /// Interrupts a call that has the turn.
  Collected Cancel(std::chrono::duration<double> timeout) RC_EXCLUDES(mutex_);

  /// Ends the wait of the Collect, Cancel or Rollout that has the turn: it returns as at its
  /// timeout, and what is pending stays so. Never waits.
  void Interrupt() RC_EXCLUDES(mutex_);

  /// Submit and Collect: every completion of `prompts`, in their order. Nothing else may be
  /// pending. Throws Error at `timeout`: groups that were done by then are in the trajectory file
  /// alone, the others go on and stay pending, for Collect or Cancel.
  std::vector<Trajectory> Rollout(const std::vector<PromptGroup>& prompts, int group_size,
                                  const SamplingParams& sampling, bool want_hidden,
                                  std::chrono::duration<double> timeout) RC_EXCLUDES(mutex_);

  /// One weight update (WeightPublisher::Publish). Ranks that took no part in a failed or
  /// incomplete update are left behind, as long as others are left.
  SyncReport Publish(const UpdateOptions& options, const std::vector<NamedTensor>& tensors)
      RC_EXCLUDES(mutex_);

  /// Names, dtypes and shapes that the ranks hold.
  WireManifest Manifest(std::chrono::duration<double> timeout) RC_EXCLUDES(mutex_);

  /// Teacher-forced log-probabilities of tokens[1..] under the live policy, by one of the ranks.
  ScoreResult Score(const std::vector<int32_t>& tokens, bool want_logits,
                    std::chrono::duration<double> timeout) RC_EXCLUDES(mutex_);

  JobStats Stats(std::chrono::duration<double> timeout) RC_EXCLUDES(mutex_);

  /// The version that the last update or reply has shown to be live.
  PolicyVersion LiveVersion() const { return live_.load(); }
  /// Ranks that the job has gone on without.
  std::vector<int> LostRanks() const RC_EXCLUDES(mutex_);

  /// Ends the job well; the trajectory file is complete when it returns.
  void Finish(std::chrono::duration<double> timeout) RC_EXCLUDES(mutex_);
  /// Ends the job badly: every rank exits with a non-zero status and `why`. Never blocks.
  void Fail(const std::string& why) RC_EXCLUDES(mutex_);

 private:
  struct Bridge;  // what only the bridge thread touches
  class Turn;     // held by the call in progress
  // What a call waits for once its task has run.
  enum class Reply : uint8_t { kNone, kStart, kCollect, kScore, kStats, kFinish };
  enum class TaskState : uint8_t { kNone, kPosted, kRunning };

  bool Round(Bridge& bridge) RC_EXCLUDES(mutex_);
  bool RunTask(Bridge& bridge) RC_EXCLUDES(mutex_);
  void Dispatch(Bridge& bridge, Message message) RC_EXCLUDES(mutex_);
  void BeatIfDue(Bridge& bridge);
  void CheckCoordinator(Bridge& bridge) RC_EXCLUDES(mutex_);
  SyncReport PublishOnBridge(Bridge& bridge, const UpdateOptions& options,
                             const std::vector<NamedTensor>& tensors);
  bool Arrived(Reply reply) const RC_REQUIRES(mutex_);
  void ThrowIfOver() const RC_REQUIRES(mutex_);

  // Runs `task` on the bridge thread and waits for it and for `reply`. Throws what the task throws,
  // and Error when the job fails or at the timeout, naming `what`. Never returns while the task
  // runs, so the task may refer to the caller's variables.
  void Call(const Turn& turn, std::function<void(Bridge&)> task, Reply reply, const char* what,
            std::chrono::duration<double> timeout) RC_EXCLUDES(mutex_);
  std::vector<uint64_t> SubmitInTurn(const Turn& turn, const std::vector<PromptGroup>& prompts,
                                     int group_size, const SamplingParams& sampling,
                                     bool want_hidden) RC_EXCLUDES(mutex_);
  Collected CollectInTurn(const Turn& turn, int groups, std::chrono::duration<double> timeout)
      RC_EXCLUDES(mutex_);

  const TrainerClientOptions options_;
  std::atomic<PolicyVersion> live_{0};
  std::atomic<int> pending_groups_{0};

  // Only the holder of the turn.
  uint64_t next_group_ = 1;
  uint64_t next_request_ = 1;

  mutable Mutex mutex_;
  CondVar changed_;
  bool in_turn_ RC_GUARDED_BY(mutex_) = false;
  bool interrupted_ RC_GUARDED_BY(mutex_) = false;  // the call that has the turn
  uint64_t collecting_ RC_GUARDED_BY(mutex_) = 0;   // its Collect that is with the coordinator
  std::function<void(Bridge&)> task_ RC_GUARDED_BY(mutex_);
  TaskState task_state_ RC_GUARDED_BY(mutex_) = TaskState::kNone;
  std::exception_ptr task_failure_ RC_GUARDED_BY(mutex_);
  bool started_ RC_GUARDED_BY(mutex_) = false;
  bool finished_ RC_GUARDED_BY(mutex_) = false;
  std::optional<std::string> failure_ RC_GUARDED_BY(mutex_);       // the job is over
  std::optional<std::string> told_to_fail_ RC_GUARDED_BY(mutex_);  // and is to be soon
  std::optional<CollectReply> collect_reply_ RC_GUARDED_BY(mutex_);
  std::optional<ScoreResult> score_reply_ RC_GUARDED_BY(mutex_);
  std::optional<StatsReply> stats_reply_ RC_GUARDED_BY(mutex_);
  std::vector<int> lost_ RC_GUARDED_BY(mutex_);
};

}  // namespace rollcast
