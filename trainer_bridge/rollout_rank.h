// The bridge thread of a rollout rank: everything that crosses the process goes through here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rollout/rollout_worker.h"
#include "trainer_bridge/communicator.h"
#include "trainer_bridge/coordinator.h"
#include "trainer_bridge/job_messages.h"
#include "trainer_bridge/roles.h"
#include "trainer_bridge/weight_sync.h"

namespace rollcast {

struct RolloutRankOptions {
  ReadyMessage ready;  // what this rank has loaded
  int max_tries = 3;
  PolicyVersion max_policy_lag = 1;
  std::chrono::duration<double> heartbeat{5};
  std::chrono::duration<double> silence{15};    // a peer unheard for so long is lost
  std::chrono::duration<double> startup{600};   // for every rank to load its weights
  std::chrono::duration<double> stop_grace{5};  // CoordinatorOptions::stop_grace
};

/// What the rank needs of its process. All are called on the bridge thread; any may be null.
struct RolloutRankSeams {
  /// Coordinator only: whole groups, gated; must be on disk when it returns.
  std::function<void(std::span<const Trajectory>)> append;
  /// Every rank: how an update ended. On the coordinator it goes to the trajectory file.
  std::function<void(const SyncReport&)> on_update;
  /// Coordinator only, after the last append and before the ranks are told that the job is over.
  /// `stopped`: why it ends early; empty: all is done.
  std::function<void(const std::string& stopped)> close;
  /// A job without a trainer: called every round on the coordinator once all ranks are ready, to
  /// submit and to take. True = the job is done.
  std::function<bool(Coordinator&)> drive;
  std::function<void(const std::string&)> warn;
  /// A job without a trainer: called every round on every rank; not empty, it says why the job is
  /// to end early: what has been handed out comes back, finished or aborted, and reaches `append`.
  std::function<std::string()> stop;
  /// Called every round; throws to end the job, e.g. because a signal has come.
  std::function<void()> check;
};

/// Runs one rollout rank, and the coordinator when this is the first of them. Bridge thread only.
class RolloutRank {
 public:
  /// All of them outlive the rank.
  RolloutRank(Communicator& communicator, const Roles& roles, RolloutWorker& worker,
              UpdateTarget& target, std::vector<WeightTransportMaker> transports,
              RolloutRankOptions options, RolloutRankSeams seams);
  ~RolloutRank();

  /// Returns when the job has ended in good order: empty, or why it has ended early. Throws what
  /// ended it otherwise: Error names the rank at fault. The caller then tells the peers
  /// (TellOfFailure).
  std::string Run();

 private:
  // One round of duties; true when a message came. `in_service`: the weight receiver is in the
  // middle of a transfer and calls this while it waits.
  bool Round(bool in_service);
  void Dispatch(Message message);
  void HandleAsWorker(JobMessage message);
  void AskToStop();
  void FinishJob();
  void Send(int rank, const JobMessage& message);
  void SendResults();
  void Pull();
  void Beat();
  void CheckCoordinator(Clock::time_point now);

  Communicator& communicator_;
  const int rank_;
  const std::vector<int> workers_;  // the first one is the coordinator
  const int trainer_;               // -1: none
  RolloutWorker& worker_;
  UpdateTarget& target_;
  const RolloutRankOptions options_;
  const RolloutRankSeams seams_;
  std::unique_ptr<Coordinator> coordinator_;  // first rollout rank only
  WeightReceiver receiver_;
  bool started_ = false;  // all ranks are ready
  bool asked_to_stop_ = false;
  bool finished_ = false;  // the job has ended in good order
  std::string stopped_;    // why it has ended early
  int64_t hand_outs_ = 0;
  std::optional<PullMessage> pull_;  // the last one sent since the last hand-out
  const Clock::time_point start_;
  Clock::time_point coordinator_heard_;
  Clock::time_point last_round_;
  Clock::time_point next_beat_;
};

/// Tells the peers that this rank ends, and why, on one line: the coordinator tells all, the others
/// tell the coordinator, or, where that is what has been lost, the trainer. Gives up what cannot be
/// sent within seconds; the peers then find out at their deadline. Bridge thread only.
void TellOfFailure(Communicator& communicator, const Roles& roles,
                   const std::exception& failure) noexcept;

}  // namespace rollcast
