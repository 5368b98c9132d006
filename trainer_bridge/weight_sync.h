// One weight update over all ranks: announce, vote, receive, verify, vote, commit.
//
//   trainer (WeightPublisher)                      each rank (WeightReceiver)
//   Announce  ------------------------------->     checks; has written nothing
//             <-------------------------------     Vote yes/no, live version
//   Begin     ------------------------------->     in_place: drains, marks the store torn
//             <-------------------------------     Ready
//   bulk      ===== chain of ranks =========>      into the staging or the live arena
//             <-------------------------------     Verified: checksums (second vote)
//   Commit    ------------------------------->     drains, locks, copies, commits, unlocks
//             <-------------------------------     Committed: pause, kept, recomputed, aborted
//
// The trainer gathers the votes itself, point to point. Until it has sent the first Commit it may
// send Abort instead, for any no, any failure and at the deadline; every rank that is left then
// drops the update and goes on with the old policy (an in_place update that had begun leaves the
// store torn). After the first Commit nothing can undo the update: a rank that does not confirm is
// named in the report, and the others have committed.
//
// A rank that has voted Verified may not decide by itself. When no decision has come at 90 % of the
// deadline it asks once, and then throws PeerLost, which ends its process: it is never half alive.
// Before Verified it drops the update by itself at the deadline, which is safe because the trainer
// cannot commit without it.
//
// Deadline: the trainer decides at 80 % of UpdateOptions::deadline and spends the rest finding out
// who is late; ranks count the whole of it from the announcement.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/tensor.h"
#include "rollout/trajectory.h"
#include "trainer_bridge/communicator.h"
#include "trainer_bridge/messages.h"
#include "trainer_bridge/update_plan.h"
#include "trainer_bridge/weight_transport.h"

namespace rollcast {

const char* Name(UpdateMode mode);
/// Throws Error, naming both choices.
UpdateMode ParseUpdateMode(const std::string& name);

struct UpdateOptions {
  std::optional<PolicyVersion> version;  // none: live + 1, derived under the scheduler lock
  UpdateMode mode = UpdateMode::kStaged;
  InFlightPolicy in_flight = InFlightPolicy::kKeep;
  bool partial = false;  // false: every tensor of the manifest must be there
  std::vector<std::string>
      names;  // partial: exactly these must be given; empty = whatever is given
  std::chrono::duration<double> deadline{60};     // of the whole update
  std::chrono::duration<double> drain_limit{20};  // kDrain; at most half of what is left
};

/// The trainer's side. Bridge thread only.
class WeightPublisher {
 public:
  /// `ranks`: the rollout ranks, in the order of the chain. `transport`: the name of the one of
  /// `transports` that updates go by. `on_other` gets every control message that arrives during a
  /// call and is not of a weight update; it may send, but not publish. Throws Error when there is
  /// no such transport.
  WeightPublisher(Communicator& communicator, std::vector<int> ranks,
                  std::vector<WeightTransportMaker> transports, const std::string& transport,
                  std::function<void(Message)> on_other);
  ~WeightPublisher();

  /// The ranks' manifest; asks the first rank on the first call. Throws PeerLost at `deadline`.
  const WireManifest& Manifest(Deadline deadline);

  /// Runs one update. Throws Error, naming the tensor, when the tensors do not fit the manifest
  /// (unknown, missing, twice, shape, dtype, out of float16's range), before anything is sent. What
  /// goes wrong after that is in the report: `committed` and `error`, which names the rank; a
  /// committed report has an error when a rank did not confirm. Returns within options.deadline.
  /// After a failure that left ranks in late(), the tensors must stay mapped as long as the
  /// communicator lives, because a late rank may still be reading them.
  SyncReport Publish(const UpdateOptions& options, std::span<const NamedTensor> tensors);

  /// Messages of weight updates that arrive between calls (a late vote, a question). True when the
  /// message was one of these.
  bool Handle(const Message& message);

  /// Ranks that did not answer in the last Publish, ascending.
  const std::vector<int>& late() const { return late_; }
  /// Later updates go by the transport of this name. Throws Error when there is none.
  void UseTransport(const std::string& name);
  const std::string& transport() const { return transport_maker_->name; }

  /// Later updates go without `rank`. It must not come back.
  void LeaveBehind(int rank);
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  struct RankState;
  struct Update;
  /// Takes in what has arrived; `update` is the one that runs, or null.
  void Pump(Update* update);
  void Dispatch(const Message& message, Update* update);
  void AnswerDecisionQuery(int rank, uint64_t id, const Update* update);
  /// Waits until every rank `is_done`; the ranks that are not at `deadline`. Before the decision
  /// throws as soon as a rank fails.
  std::vector<int> WaitForAll(Update& update, Deadline deadline, bool (*is_done)(const RankState&));
  void SendToAll(const std::vector<std::byte>& bytes);
  void Announce(Update& update);
  void Transfer(Update& update);
  void Verify(Update& update);
  void Commit(Update& update);
  /// Tells every rank to drop the update and finds out who is late.
  void AbortAndExplain(Update& update, const std::string& reason);

  Communicator& communicator_;
  std::vector<int> ranks_;
  const std::vector<WeightTransportMaker> transport_makers_;
  const WeightTransportMaker* transport_maker_;  // the one of them in use
  std::function<void(Message)> on_other_;
  std::vector<std::unique_ptr<WeightTransport>> transports_;  // the last is in use; a late rank may
                                                              // still read buffers of earlier ones
  std::vector<int32_t> transport_group_;
  std::string transport_token_;
  DeviceSet devices_;  // of the trainer's tensors
  std::optional<WireManifest> manifest_;
  uint64_t next_update_ = 1;
  std::optional<UpdateCommit> last_commit_;  // answers a rank that missed it
  std::vector<int> late_;
};

/// What WeightReceiver needs of an engine and its weights. Bridge thread only.
class UpdateTarget {
 public:
  virtual ~UpdateTarget() = default;
  virtual const WireManifest& manifest() const = 0;
  virtual PolicyVersion version() const = 0;
  virtual bool torn() const = 0;
  /// The arenas: memory of the host or of a device.
  virtual std::byte* live() = 0;
  /// Allocated on first use; throws Error when there is too little memory.
  virtual std::byte* staging() = 0;
  /// DigestSum (kernels/digest.h) of every entry of the manifest as a commit would leave it: of the
  /// entries `carried` by the update from `mode`'s arena, where they are read now; of all others
  /// from live, where sums of an earlier call may stand for bytes that nobody has written since.
  virtual std::vector<uint64_t> DigestSums(std::span<const uint32_t> carried, UpdateMode mode) = 0;

  /// Holds back admission and waits until what drains under `policy` has finished, or `deadline`.
  /// Calls `service` meanwhile.
  virtual void Drain(InFlightPolicy policy, Deadline deadline, const Service& service) = 0;
  virtual void ResumeAdmission() = 0;
  /// From here on the entries `written` of the live arena may be written: the engine does not step
  /// until a commit. The scheduler lock is held only to set the mark, so that the rest of the rank
  /// (submissions, status, heartbeats) is not blocked by a transfer.
  virtual void MarkTorn(std::span<const uint32_t> written) = 0;

  struct Committed {
    PolicyVersion version = 0;
    CommitResult sequences;
    double pause_s = 0;  // from the end of the last step to the release of the lock
  };
  /// Under the scheduler lock: checks that the live version is still `live_version`, copies the
  /// entries `from_staging` from staging to live, and commits `version` (none: live + 1). Throws
  /// Error when the live version is another.
  virtual Committed Commit(std::span<const uint32_t> from_staging, PolicyVersion live_version,
                           std::optional<PolicyVersion> version, InFlightPolicy policy) = 0;
};

/// A rank's side. Driven by messages and by Tick, on the bridge thread.
class WeightReceiver {
 public:
  struct Callbacks {
    /// One round of the bridge thread's duties: polls the communicator and hands messages of weight
    /// updates to Handle. Called while a transfer or a drain waits (communicator.h, Service).
    Service service;
    /// A further reason to vote no; empty = none. May be null.
    std::function<std::string(const UpdateAnnounce&)> check;
    /// How each update ended. May be null.
    std::function<void(const SyncReport&)> on_report;
  };

  /// The announcement of an update names the one of `transports` that it goes by.
  WeightReceiver(Communicator& communicator, UpdateTarget& target,
                 std::vector<WeightTransportMaker> transports, Callbacks callbacks);
  ~WeightReceiver();

  /// False when `message` is not of a weight update. Runs a whole transfer inside (calling
  /// callbacks.service). Throws what the engine throws; that is the end of this rank.
  bool Handle(const Message& message);
  /// Looks at deadlines; call at least every 100 ms. Throws PeerLost when a decision on a verified
  /// update does not come.
  void Tick();
  bool updating() const { return state_ != State::kIdle; }

 private:
  enum class State { kIdle, kAnnounced, kReceiving, kVerified, kCommitting };

  void OnAnnounce(int source, UpdateAnnounce announce);
  /// Empty when this rank can take part.
  std::string ReasonAgainst(int source, const UpdateAnnounce& announce);
  void OnBegin(int source, const UpdateBegin& begin);
  void Receive();
  void Verify(double receive_s);
  void OnCommit(int source, const UpdateCommit& commit);
  void OnAbort(int source, const UpdateAbort& abort);
  void Drain(Deadline deadline);
  /// callbacks_.service; throws when an abort has arrived.
  void ServeDuringTransfer();
  /// The update is over on this rank without a commit.
  void Drop();

  Communicator& communicator_;
  UpdateTarget& target_;
  const std::vector<WeightTransportMaker> transport_makers_;
  Callbacks callbacks_;
  std::unique_ptr<WeightTransport> transport_;
  std::vector<int32_t> transport_group_;
  std::string transport_token_;
  State state_ = State::kIdle;
  int trainer_ = -1;
  UpdateAnnounce announce_;
  Clock::time_point announced_at_{};
  Deadline deadline_{};
  bool draining_ = false;             // admission is held back
  std::exception_ptr service_error_;  // what callbacks_.service threw in the middle of a transfer
  bool abort_wanted_ = false;         // set by OnAbort in the middle of a transfer
  bool asked_ = false;                // a DecisionQuery has been sent
  Clock::time_point torn_since_{};
  std::optional<UpdateCommitted> last_committed_;
};

}  // namespace rollcast
