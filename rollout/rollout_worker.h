// Keeps an engine fed and turns finished sequences into scored trajectories, on one rank.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "engine/mutex.h"
#include "rollout/group_work.h"
#include "rollout/scorer.h"
#include "rollout/stop_strings.h"
#include "rollout/tokenizer.h"
#include "rollout/trajectory.h"

namespace rollcast {

struct RolloutWorkerOptions {
  int rank = 0;             // written into trajectories
  int max_outstanding = 0;  // completions taken and not yet fetched; 0 = 1.5 engine loads
  int score_batch = 64;     // completions given to the scorer at once, at most
  /// Bytes of the logits of one score request, or of the hidden states of one completion, at most:
  /// such a result travels in one message, which has less than 2 GiB.
  size_t max_result_bytes = size_t{1} << 30;
};

struct RolloutWorkerStats {
  EngineStats engine;       // as of the last step, at most 100 ms old while stepping
  int outstanding = 0;      // taken, not yet fetched
  int unscored = 0;         // generated, not yet scored
  int64_t completions = 0;  // given out since the start
  double score_s = 0;       // time in the scorer
};

/// What comes out: an outcome of a completion, or of a score request.
using WorkerResult = std::variant<Trajectory, ScoreResult>;

/// Two threads: the engine thread steps, the sink thread decodes and scores. A slow scorer never
/// holds up a step; it uses up FreeRoom, so that less is taken. Every sample of every submitted
/// group comes out exactly once, as long as neither thread has failed.
/// Thread rule: any thread may call anything; Start and Stop are the constructor and destructor's.
class RolloutWorker {
 public:
  /// Starts the threads. `engine` and `tokenizer` outlive the worker; a null `tokenizer` serves
  /// token-id prompts alone, a null `scorer` gives every completion the reward 0.
  RolloutWorker(Engine& engine, const Tokenizer* tokenizer, std::unique_ptr<Scorer> scorer,
                const RolloutWorkerOptions& options);
  /// Ends both threads; what is in flight is dropped.
  ~RolloutWorker();
  RolloutWorker(const RolloutWorker&) = delete;
  RolloutWorker& operator=(const RolloutWorker&) = delete;

  /// How many more completions fit. Negative when a group larger than the room was submitted.
  int FreeRoom() const RC_EXCLUDES(mutex_);
  /// Takes the samples that `work` names, even beyond FreeRoom. Never blocks on a step.
  void SubmitGroup(GroupWork work) RC_EXCLUDES(mutex_);
  void SubmitScore(ScoreWork work) RC_EXCLUDES(mutex_);
  /// The completions of the group that have not finished come out as kAborted.
  void AbortGroup(uint64_t group_id, std::string message) RC_EXCLUDES(mutex_);
  /// The same for every group that the worker has now.
  void AbortAll(std::string message) RC_EXCLUDES(mutex_);

  /// What has come out since the last call, in order.
  std::vector<WorkerResult> TakeResults() RC_EXCLUDES(mutex_);
  /// True when there are results, false at `deadline` or after a failure.
  bool WaitForResults(std::chrono::steady_clock::time_point deadline) RC_EXCLUDES(mutex_);

  /// Throws what ended one of the threads, if one has ended.
  void ThrowIfFailed() const RC_EXCLUDES(mutex_);
  RolloutWorkerStats stats() const RC_EXCLUDES(mutex_);

 private:
  struct Abort {
    std::optional<uint64_t> group_id;  // none: of all groups
    std::string message;
    bool Means(uint64_t group) const { return !group_id.has_value() || *group_id == group; }
  };
  using Command = std::variant<GroupWork, ScoreWork, Abort>;

  // A request that the engine has; `group` is null for a score request.
  struct InFlight {
    std::shared_ptr<const GroupWork> group{};
    int32_t sample_index = 0;
    SamplingParams sampling{};
    std::shared_ptr<StopStrings> stop{};
    uint64_t score_id = 0;
  };
  struct Waiting {
    Request request;
    InFlight in_flight;
  };
  struct Finished {
    InFlight request;
    Completion completion;
    PolicyVersion version = 0;  // live when it finished
  };

  void EngineLoop() RC_EXCLUDES(mutex_);
  void SinkLoop() RC_EXCLUDES(mutex_);
  bool TakeCommand(Command& command) RC_EXCLUDES(mutex_);
  /// Why the group, which is being started, is to end: an abort that is yet to be executed, or the
  /// worker's end.
  std::optional<std::string> AbortAhead(uint64_t group_id) const RC_EXCLUDES(mutex_);
  void Execute(Command command) RC_EXCLUDES(mutex_);
  void StartGroup(GroupWork work) RC_EXCLUDES(mutex_);
  void StartScore(ScoreWork work) RC_EXCLUDES(mutex_);
  void AbortStarted(const Abort& abort) RC_EXCLUDES(mutex_);
  /// Gives the engine what its queue has room for, oldest first.
  void FeedEngine() RC_EXCLUDES(mutex_);
  void Refuse(const InFlight& request, std::string why, Outcome outcome) RC_EXCLUDES(mutex_);
  void Push(Command command) RC_EXCLUDES(mutex_);
  void Fail(std::exception_ptr failure) RC_EXCLUDES(mutex_);
  void Emit(std::vector<WorkerResult> results) RC_EXCLUDES(mutex_);
  Trajectory ToTrajectory(Finished item) const;
  std::vector<WorkerResult> Score(std::vector<Finished> batch);

  Engine& engine_;
  const Tokenizer* tokenizer_;
  const std::unique_ptr<Scorer> scorer_;  // sink thread
  const RolloutWorkerOptions options_;

  std::atomic<bool> stop_{false};
  std::atomic<bool> engine_idle_{false};
  // Engine thread only.
  uint64_t next_request_id_ = 1;
  std::unordered_map<uint64_t, InFlight> in_flight_;
  std::deque<Waiting> backlog_;  // the engine's queue has no room for these yet

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Command> inbox_ RC_GUARDED_BY(mutex_);
  std::deque<Finished> to_score_ RC_GUARDED_BY(mutex_);
  std::vector<WorkerResult> results_ RC_GUARDED_BY(mutex_);
  RolloutWorkerStats stats_ RC_GUARDED_BY(mutex_);
  std::exception_ptr failure_ RC_GUARDED_BY(mutex_);

  std::thread engine_thread_, sink_thread_;
};

}  // namespace rollcast
