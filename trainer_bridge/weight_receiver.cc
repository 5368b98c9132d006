// A rank's side of a weight update.
#include <algorithm>
#include <limits>

#include "kernels/digest.h"
#include "trainer_bridge/weight_sync.h"

namespace rollcast {
namespace {

/// The trainer has given the update up, or callbacks.service has thrown, in the middle of a
/// transfer.
struct TransferStopped {};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Clock::duration AsClock(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

WeightReceiver::WeightReceiver(Communicator& communicator, UpdateTarget& target,
                               std::vector<WeightTransportMaker> transports, Callbacks callbacks)
    : communicator_(communicator),
      target_(target),
      transport_makers_(std::move(transports)),
      callbacks_(std::move(callbacks)) {
  RC_CHECK(callbacks_.service != nullptr);
}

WeightReceiver::~WeightReceiver() = default;

bool WeightReceiver::Handle(const Message& message) {
  switch (TypeOf(message.bytes)) {
    case MessageType::kManifestQuery: {
      WireManifest manifest = target_.manifest();
      manifest.version = target_.version();
      communicator_.Send(message.source, Encode(manifest));
      return true;
    }
    case MessageType::kAnnounce:
      OnAnnounce(message.source, Decode<UpdateAnnounce>(message.bytes));
      return true;
    case MessageType::kBegin:
      OnBegin(message.source, Decode<UpdateBegin>(message.bytes));
      return true;
    case MessageType::kCommit:
      OnCommit(message.source, Decode<UpdateCommit>(message.bytes));
      return true;
    case MessageType::kAbortUpdate:
      OnAbort(message.source, Decode<UpdateAbort>(message.bytes));
      return true;
    case MessageType::kUpdateReport: {
      const auto report = Decode<UpdateReport>(message.bytes);
      if (callbacks_.on_report) callbacks_.on_report(report.report);
      return true;
    }
    default:
      return false;
  }
}

std::string WeightReceiver::ReasonAgainst(int source, const UpdateAnnounce& announce) {
  const WireManifest& manifest = target_.manifest();
  if (state_ != State::kIdle)
    return StrCat("update ", announce_.update, " has not ended on this rank");
  if (announce.manifest_digest != manifest.digest)
    return StrCat("the weight manifest differs (digest ", manifest.digest, ", the update's is ",
                  announce.manifest_digest, "): not the same model");
  const size_t entries = manifest.entries.size();
  for (size_t i = 0; i < announce.carried.size(); ++i)
    if (announce.carried[i] >= entries || (i > 0 && announce.carried[i] <= announce.carried[i - 1]))
      return StrCat("the list of carried tensors is not an ascending list below ", entries);
  if (!announce.partial && announce.carried.size() != entries)
    return StrCat("a whole update carries ", announce.carried.size(), " of ", entries, " tensors");
  if (announce.version && *announce.version <= target_.version())
    return StrCat("version ", *announce.version, " is not above the live version ",
                  target_.version());
  if (!announce.version && target_.version() == std::numeric_limits<PolicyVersion>::max())
    return StrCat("no version is above the live version ", target_.version());
  if (announce.partial && target_.torn())
    return "the weights are torn by a failed in_place update; only a whole update repairs them";
  try {
    FindTransport(transport_makers_, announce.transport);
  } catch (const Error& error) {
    return error.what();
  }
  if (announce.group.empty() || announce.group.front() != source ||
      std::count(announce.group.begin(), announce.group.end(), communicator_.rank()) != 1)
    return "this rank is not in the update's group";
  if (announce.mode == UpdateMode::kStaged) {
    try {
      target_.staging();
    } catch (const Error& error) {
      return StrCat("staged: ", error.what());
    }
  }
  return callbacks_.check ? callbacks_.check(announce) : std::string();
}

void WeightReceiver::OnAnnounce(int source, UpdateAnnounce announce) {
  // A newer update of the same trainer means that it has given the one before up.
  if (state_ == State::kAnnounced && source == trainer_ && announce.update > announce_.update)
    Drop();
  if (state_ == State::kVerified)
    communicator_.Send(trainer_, Encode(DecisionQuery{announce_.update}));
  UpdateVote vote;
  vote.update = announce.update;
  vote.reason = ReasonAgainst(source, announce);
  vote.yes = vote.reason.empty();
  vote.live = target_.version();
  if (vote.yes) {
    state_ = State::kAnnounced;
    trainer_ = source;
    announced_at_ = Clock::now();
    deadline_ = announced_at_ + AsClock(announce.remaining_s);
    abort_wanted_ = asked_ = false;
    announce_ = std::move(announce);
  }
  communicator_.Send(source, Encode(vote));
}

void WeightReceiver::OnBegin(int source, const UpdateBegin& begin) {
  if (state_ != State::kAnnounced || begin.update != announce_.update || source != trainer_) {
    communicator_.Send(source, Encode(UpdateFailed{begin.update,
                                                   "the update is not announced on this rank (any "
                                                   "more)",
                                                   target_.torn(), -1}));
    return;
  }
  state_ = State::kReceiving;
  UpdateFailed failed;
  failed.update = begin.update;
  bool stopped = false;
  try {
    Receive();
  } catch (const TransferStopped&) {
    stopped = true;
  } catch (const PeerLost& lost) {
    failed.reason = lost.what();
    failed.lost_rank = lost.rank();
  } catch (const Error& error) {
    failed.reason = error.what();
  }
  if (service_error_) {
    Drop();
    std::rethrow_exception(std::exchange(service_error_, nullptr));
  }
  if (!stopped && failed.reason.empty()) return;
  Drop();
  if (stopped) {
    communicator_.Send(trainer_, Encode(UpdateAborted{begin.update, target_.torn(), false}));
  } else {
    failed.torn = target_.torn();
    communicator_.Send(trainer_, Encode(failed));
  }
}

void WeightReceiver::ServeDuringTransfer() {
  try {
    callbacks_.service();
  } catch (...) {
    // Not the transfer's own failure, which the trainer hears of: this one ends the rank.
    service_error_ = std::current_exception();
    throw TransferStopped{};
  }
  if (abort_wanted_) throw TransferStopped{};
}

void WeightReceiver::Drain(Deadline limit) {
  const auto now = Clock::now();
  draining_ = true;
  const auto half = now + std::max(Clock::duration::zero(), (deadline_ - now) / 2);
  target_.Drain(announce_.in_flight, std::min(limit, half),
                state_ == State::kCommitting ? callbacks_.service
                                             : Service([this] { ServeDuringTransfer(); }));
}

void WeightReceiver::Receive() {
  const bool staged = announce_.mode == UpdateMode::kStaged;
  if (transport_ == nullptr || transport_->broken() || transport_->name() != announce_.transport ||
      transport_group_ != announce_.group || transport_token_ != announce_.transport_token) {
    transport_ = FindTransport(transport_makers_, announce_.transport)
                     .make(communicator_, announce_.group, announce_.transport_token);
    transport_group_ = announce_.group;
    transport_token_ = announce_.transport_token;
  }
  if (!staged) {
    Drain(Clock::now() + AsClock(announce_.drain_s));
    target_.MarkTorn(announce_.carried);
    torn_since_ = Clock::now();
  }
  communicator_.Send(trainer_, Encode(UpdateReady{announce_.update}));

  std::byte* arena = staged ? target_.staging() : target_.live();
  std::vector<MutableBytes> spans;
  for (const uint32_t i : announce_.carried) {
    const ManifestEntry& entry = target_.manifest().entries[i];
    spans.emplace_back(arena + entry.offset, entry.bytes);
  }
  const auto start = Clock::now();
  transport_->Receive(announce_.update, spans, deadline_, [this] { ServeDuringTransfer(); });
  const double receive_s = SecondsSince(start);
  Verify(receive_s);
}

void WeightReceiver::Verify(double receive_s) {
  const auto start = Clock::now();
  UpdateVerified verified;
  verified.update = announce_.update;
  verified.receive_s = receive_s;
  const std::vector<ManifestEntry>& entries = target_.manifest().entries;
  const std::vector<uint64_t> sums = target_.DigestSums(announce_.carried, announce_.mode);
  DigestFold payload, store;
  for (const uint32_t i : announce_.carried) payload.Add(sums[i], entries[i].bytes);
  for (size_t i = 0; i < entries.size(); ++i) store.Add(sums[i], entries[i].bytes);
  verified.payload_digest = payload.value();
  verified.store_digest = store.value();
  verified.digest_s = SecondsSince(start);
  state_ = State::kVerified;
  // The trainer decides before this, and waits for confirmations until after it.
  deadline_ = announced_at_ + AsClock(0.9 * announce_.remaining_s);
  communicator_.Send(trainer_, Encode(verified));
}

void WeightReceiver::OnCommit(int source, const UpdateCommit& commit) {
  if (last_committed_ && last_committed_->update == commit.update) {  // it asked twice
    communicator_.Send(source, Encode(*last_committed_));
    return;
  }
  if (state_ == State::kCommitting && commit.update == announce_.update) return;
  if (state_ != State::kVerified || commit.update != announce_.update || source != trainer_)
    throw Error(StrCat("rank ", communicator_.rank(), " is to commit update ", commit.update,
                       ", which it has not verified: its weights are not those of the others"));
  state_ = State::kCommitting;
  const bool staged = announce_.mode == UpdateMode::kStaged;
  const auto start = Clock::now();
  if (staged) {
    deadline_ = start + AsClock(commit.remaining_s);
    Drain(start + AsClock(announce_.drain_s));
  }
  const UpdateTarget::Committed done = target_.Commit(
      staged ? std::span<const uint32_t>(announce_.carried) : std::span<const uint32_t>(),
      commit.live, announce_.version, announce_.in_flight);
  draining_ = false;  // the commit has ended it
  UpdateCommitted committed;
  committed.update = announce_.update;
  committed.version = done.version;
  committed.pause_s = staged ? done.pause_s : SecondsSince(torn_since_);
  committed.commit_s = SecondsSince(start);
  committed.kept = done.sequences.kept;
  committed.recomputed = done.sequences.recomputed;
  committed.aborted = done.sequences.aborted;
  last_committed_ = committed;
  state_ = State::kIdle;
  communicator_.Send(source, Encode(committed));
}

void WeightReceiver::OnAbort(int source, const UpdateAbort& abort) {
  const bool mine =
      state_ != State::kIdle && abort.update == announce_.update && source == trainer_;
  if (mine && state_ == State::kReceiving) {
    abort_wanted_ = true;  // the transfer stops at its next look, and answers
    return;
  }
  if (mine && state_ == State::kCommitting)
    throw Error(StrCat("rank ", communicator_.rank(), " commits update ", abort.update,
                       " and is told to abort it"));
  const bool received_all = mine && state_ == State::kVerified;
  if (mine) Drop();
  communicator_.Send(source, Encode(UpdateAborted{abort.update, target_.torn(), received_all}));
}

void WeightReceiver::Drop() {
  state_ = State::kIdle;
  if (std::exchange(draining_, false)) target_.ResumeAdmission();
}

void WeightReceiver::Tick() {
  if (state_ == State::kIdle || Clock::now() < deadline_) return;
  if (state_ == State::kAnnounced) {
    Drop();
  } else if (state_ == State::kVerified && !asked_) {
    asked_ = true;
    communicator_.Send(trainer_, Encode(DecisionQuery{announce_.update}));
    deadline_ = Clock::now() + AsClock(announce_.remaining_s / 4);
  } else if (state_ == State::kVerified) {
    throw PeerLost(
        trainer_, StrCat("rank ", trainer_, " (the trainer) sent no decision on update ",
                         announce_.update, ", which rank ", communicator_.rank(), " has verified"));
  }
}

}  // namespace rollcast
