// The trainer's side of a weight update; weight_receiver.cc has the ranks'.
#include "trainer_bridge/weight_sync.h"

#include <algorithm>
#include <map>

namespace rollcast {
namespace {

constexpr double kDecideShare = 0.8;  // of the deadline; the rest finds out who is late

/// The update cannot go on; nothing has been committed.
struct Failure {
  std::string reason;
};

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }
double SecondsSince(Clock::time_point start) { return Seconds(Clock::now() - start); }

Clock::duration AsClock(std::chrono::duration<double> duration) {
  return std::chrono::duration_cast<Clock::duration>(duration);
}

std::string ListRanks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += StrCat(i ? ", " : "", ranks[i]);
  return text;
}

bool IsUpdateMessage(MessageType type) {
  return type >= MessageType::kManifestQuery && type <= MessageType::kUpdateReport;
}

}  // namespace

const char* Name(UpdateMode mode) { return mode == UpdateMode::kStaged ? "staged" : "in_place"; }

UpdateMode ParseUpdateMode(const std::string& name) {
  if (name == "staged") return UpdateMode::kStaged;
  if (name == "in_place") return UpdateMode::kInPlace;
  throw Error(StrCat("update mode \"", name, "\": expected staged or in_place"));
}

struct WeightPublisher::RankState {
  std::optional<UpdateVote> vote;
  bool ready = false;
  std::optional<UpdateVerified> verified;
  std::optional<UpdateCommitted> committed;
  std::optional<UpdateFailed> failed;
  std::optional<UpdateAborted> aborted;
  std::string malformed;  // it sent a message that cannot be read
};

struct WeightPublisher::Update {
  enum class Decision { kOpen, kAbort, kCommit };

  UpdateAnnounce announce;
  UpdatePlan plan;
  double deadline_s = 0;
  Deadline decide_by{}, end{};
  Decision decision = Decision::kOpen;
  std::map<int, RankState> ranks;
  PolicyVersion live = 0;
  uint64_t sent_digest = 0;
  SyncReport report;

  double decide_s() const { return kDecideShare * deadline_s; }
};

WeightPublisher::WeightPublisher(Communicator& communicator, std::vector<int> ranks,
                                 std::vector<WeightTransportMaker> transports,
                                 const std::string& transport,
                                 std::function<void(Message)> on_other)
    : communicator_(communicator),
      ranks_(std::move(ranks)),
      transport_makers_(std::move(transports)),
      transport_maker_(&FindTransport(transport_makers_, transport)),
      on_other_(std::move(on_other)) {
  RC_CHECK(on_other_ != nullptr);
}

WeightPublisher::~WeightPublisher() = default;

void WeightPublisher::UseTransport(const std::string& name) {
  const WeightTransportMaker& maker = FindTransport(transport_makers_, name);
  if (&maker == transport_maker_) return;
  transport_maker_ = &maker;
  transport_group_.clear();  // the next update makes its transport anew
}

void WeightPublisher::LeaveBehind(int rank) { std::erase(ranks_, rank); }

void WeightPublisher::SendToAll(const std::vector<std::byte>& bytes) {
  for (const int rank : ranks_) communicator_.Send(rank, bytes);
}

bool WeightPublisher::Handle(const Message& message) {
  if (!IsUpdateMessage(TypeOf(message.bytes))) return false;
  Dispatch(message, nullptr);
  return true;
}

void WeightPublisher::Pump(Update* update) {
  while (std::optional<Message> message = communicator_.Poll()) {
    if (IsUpdateMessage(TypeOf(message->bytes)))
      Dispatch(*message, update);
    else
      on_other_(std::move(*message));
  }
}

void WeightPublisher::Dispatch(const Message& message, Update* update) {
  const int source = message.source;
  RankState* state = nullptr;
  if (update != nullptr) {
    const auto it = update->ranks.find(source);
    if (it != update->ranks.end()) state = &it->second;
  }
  // Answers to an earlier update, or of a rank that was left behind, say nothing about this one.
  const auto store = [&](auto& slot, auto&& answer) {
    if (state != nullptr && answer.update == update->announce.update)
      (state->*slot) = std::forward<decltype(answer)>(answer);
  };
  try {
    switch (TypeOf(message.bytes)) {
      case MessageType::kManifest:
        if (!manifest_) manifest_ = Decode<WireManifest>(message.bytes);
        break;
      case MessageType::kVote: {
        auto slot = &RankState::vote;
        store(slot, Decode<UpdateVote>(message.bytes));
        break;
      }
      case MessageType::kReady:
        if (state != nullptr &&
            Decode<UpdateReady>(message.bytes).update == update->announce.update)
          state->ready = true;
        break;
      case MessageType::kVerified: {
        auto slot = &RankState::verified;
        store(slot, Decode<UpdateVerified>(message.bytes));
        break;
      }
      case MessageType::kCommitted: {
        auto slot = &RankState::committed;
        store(slot, Decode<UpdateCommitted>(message.bytes));
        break;
      }
      case MessageType::kUpdateFailed: {
        auto slot = &RankState::failed;
        store(slot, Decode<UpdateFailed>(message.bytes));
        break;
      }
      case MessageType::kUpdateAborted: {
        auto slot = &RankState::aborted;
        store(slot, Decode<UpdateAborted>(message.bytes));
        break;
      }
      case MessageType::kDecisionQuery:
        AnswerDecisionQuery(source, Decode<DecisionQuery>(message.bytes).update, update);
        break;
      default:
        throw Error(StrCat("message type ", static_cast<int>(TypeOf(message.bytes)),
                           " is not one that a trainer gets"));
    }
  } catch (const Error& error) {
    if (state == nullptr) throw Error(StrCat("from rank ", source, ": ", error.what()));
    state->malformed = error.what();
  }
}

void WeightPublisher::AnswerDecisionQuery(int rank, uint64_t id, const Update* update) {
  if (last_commit_ && last_commit_->update == id) {
    communicator_.Send(rank, Encode(*last_commit_));
    return;
  }
  const bool open = update != nullptr && update->announce.update == id &&
                    update->decision == Update::Decision::kOpen;
  // An update older than the last commit may have been committed too: a rank that slept through
  // both gets no answer and ends.
  if (open || (last_commit_ && id < last_commit_->update)) return;
  communicator_.Send(rank, Encode(UpdateAbort{id, "the trainer did not commit this update"}));
}

std::vector<int> WeightPublisher::WaitForAll(Update& update, Deadline deadline,
                                             bool (*is_done)(const RankState&)) {
  Backoff backoff;
  for (;;) {
    Pump(&update);
    std::vector<int> missing;
    for (const auto& [rank, state] : update.ranks) {
      if (update.decision == Update::Decision::kOpen) {
        if (!state.malformed.empty()) throw Failure{StrCat("rank ", rank, ": ", state.malformed)};
        if (state.failed) throw Failure{StrCat("rank ", rank, ": ", state.failed->reason)};
        if (state.vote && !state.vote->yes)
          throw Failure{StrCat("rank ", rank, ": ", state.vote->reason)};
      }
      if (!is_done(state)) missing.push_back(rank);
    }
    if (missing.empty() || Clock::now() >= deadline) return missing;
    backoff.Wait();
  }
}

const WireManifest& WeightPublisher::Manifest(Deadline deadline) {
  if (manifest_) return *manifest_;
  if (ranks_.empty()) throw Error("no rollout rank is left");
  communicator_.Send(ranks_.front(), Encode(ManifestQuery{}));
  Backoff backoff;
  for (;;) {
    Pump(nullptr);
    if (manifest_) return *manifest_;
    if (Clock::now() >= deadline)
      throw PeerLost(ranks_.front(),
                     StrCat("rank ", ranks_.front(), " did not send its weight manifest in time"));
    backoff.Wait();
  }
}

void WeightPublisher::Announce(Update& update) {
  SendToAll(Encode(update.announce));
  const std::vector<int> missing = WaitForAll(
      update, update.decide_by, [](const RankState& state) { return state.vote.has_value(); });
  if (!missing.empty())
    throw Failure{
        StrCat("announce: no vote from ", ListRanks(missing), " within ", update.decide_s(), " s")};
  const auto& [first_rank, first] = *update.ranks.begin();
  update.live = update.report.version = first.vote->live;
  for (const auto& [rank, state] : update.ranks)
    if (state.vote->live != update.live)
      throw Failure{StrCat("rank ", rank, " has policy version ", state.vote->live, " live, rank ",
                           first_rank, " has ", update.live)};
}

void WeightPublisher::Transfer(Update& update) {
  if (transports_.empty() || transport_group_ != update.announce.group) {
    transports_.push_back(
        transport_maker_->make(communicator_, update.announce.group, transport_token_));
    transport_group_ = update.announce.group;
  }
  WeightTransport& transport = *transports_.back();
  transport.Prepare(update.announce.update, update.plan.sources);
  SendToAll(Encode(UpdateBegin{update.announce.update}));
  const std::vector<int> missing =
      WaitForAll(update, update.decide_by, [](const RankState& state) { return state.ready; });
  if (!missing.empty())
    throw Failure{
        StrCat("begin: ", ListRanks(missing), " not ready within ", update.decide_s(), " s")};
  const Service serve = [&] {
    WaitForAll(update, Clock::now(), [](const RankState&) { return true; });
  };
  try {
    update.sent_digest =
        transport.Send(update.announce.update, update.plan.sources, update.decide_by, serve);
  } catch (const PeerLost& lost) {
    throw Failure{StrCat("transfer: ", lost.what())};
  }
}

void WeightPublisher::Verify(Update& update) {
  const std::vector<int> missing = WaitForAll(
      update, update.decide_by, [](const RankState& state) { return state.verified.has_value(); });
  if (!missing.empty())
    throw Failure{StrCat("verify: no checksum from ", ListRanks(missing), " within ",
                         update.decide_s(), " s")};
  const auto& [first_rank, first] = *update.ranks.begin();
  for (const auto& [rank, state] : update.ranks) {
    if (state.verified->payload_digest != update.sent_digest)
      throw Failure{StrCat("verify: rank ", rank, " received weights with checksum ",
                           state.verified->payload_digest, ", ", update.sent_digest, " were sent")};
    if (state.verified->store_digest != first.verified->store_digest)
      throw Failure{StrCat("verify: the weights of rank ", rank, " outside this update differ from",
                           " those of rank ", first_rank, "; publish a whole update")};
  }
  update.report.digest = first.verified->store_digest;
  for (const auto& [rank, state] : update.ranks)
    update.report.receive_s = std::max(update.report.receive_s, state.verified->receive_s);
}

void WeightPublisher::Commit(Update& update) {
  update.decision = Update::Decision::kCommit;
  last_commit_ = UpdateCommit{update.announce.update, update.live,
                              std::max(0.0, Seconds(update.end - Clock::now()))};
  SendToAll(Encode(*last_commit_));
  const std::vector<int> missing = WaitForAll(
      update, update.end, [](const RankState& state) { return state.committed.has_value(); });
  SyncReport& report = update.report;
  report.committed = true;
  report.version = update.announce.version.value_or(update.live + 1);
  for (const auto& [rank, state] : update.ranks) {
    if (!state.committed) continue;
    report.pause_s = std::max(report.pause_s, state.committed->pause_s);
    report.sequences_kept += state.committed->kept;
    report.sequences_recomputed += state.committed->recomputed;
    report.sequences_aborted += state.committed->aborted;
    if (state.committed->version != report.version)
      report.error += StrCat("rank ", rank, " committed version ", state.committed->version,
                             ", expected ", report.version, "; ");
  }
  late_ = missing;
  if (!missing.empty())
    report.error += StrCat("commit: ", ListRanks(missing), " did not confirm within ",
                           update.deadline_s, " s; the others serve version ", report.version);
}

void WeightPublisher::AbortAndExplain(Update& update, const std::string& reason) {
  update.decision = Update::Decision::kAbort;
  SendToAll(Encode(UpdateAbort{update.announce.update, reason}));
  const Deadline patience =
      std::min(update.end, Clock::now() + AsClock(std::chrono::duration<double>(
                                              (1 - kDecideShare) * update.deadline_s)));
  late_ = WaitForAll(update, std::max(patience, Clock::now()),
                     [](const RankState& state) { return state.aborted.has_value(); });
  std::vector<int> torn, incomplete;
  bool received_any = false;
  for (const auto& [rank, state] : update.ranks) {
    const bool was_torn =
        (state.aborted && state.aborted->torn) ||
        (!state.aborted && update.announce.mode == UpdateMode::kInPlace && state.ready);
    if (was_torn) torn.push_back(rank);
    if (state.ready && state.aborted && !state.verified) incomplete.push_back(rank);
    received_any |= state.verified.has_value();
  }
  std::string& error = update.report.error;
  if (!late_.empty())
    error = StrCat(ListRanks(late_), late_.size() == 1 ? " does" : " do", " not answer: ");
  error += reason;
  if (received_any && !incomplete.empty() && late_.empty())
    error += StrCat("; incomplete on ", ListRanks(incomplete));
  if (!torn.empty())
    error +=
        StrCat("; the weights of ", ListRanks(torn), " are torn until a whole update succeeds");
}

SyncReport WeightPublisher::Publish(const UpdateOptions& options,
                                    std::span<const NamedTensor> tensors) {
  const auto start = Clock::now();
  if (!(options.deadline.count() > 0))
    throw Error(StrCat("update deadline ", options.deadline.count(), " s: expected more than 0"));
  late_.clear();

  Update update;
  update.deadline_s = options.deadline.count();
  update.decide_by = start + AsClock(kDecideShare * options.deadline);
  update.end = start + AsClock(options.deadline);
  SyncReport& report = update.report;
  report.mode = Name(options.mode);
  report.transport = transport_maker_->name;

  try {
    Manifest(update.decide_by);
  } catch (const PeerLost& lost) {
    late_ = {lost.rank()};
    report.error = lost.what();
    report.total_s = SecondsSince(start);
    return report;
  }
  if (ranks_.empty()) throw Error("no rollout rank is left");
  update.plan = MakeUpdatePlan(*manifest_, options.partial, options.names, tensors, devices_);
  report.bytes = update.plan.bytes;
  report.version = manifest_->version;

  UpdateAnnounce& announce = update.announce;
  announce.update = next_update_++;
  announce.version = options.version;
  announce.mode = options.mode;
  announce.in_flight = options.in_flight;
  announce.partial = options.partial;
  announce.manifest_digest = manifest_->digest;
  announce.carried = update.plan.carried;
  announce.transport = transport_maker_->name;
  announce.group.push_back(communicator_.rank());
  announce.group.insert(announce.group.end(), ranks_.begin(), ranks_.end());
  if (transports_.empty() || transports_.back()->broken() || transport_group_ != announce.group) {
    transport_group_.clear();
    transport_token_ = transport_maker_->make_token();
  }
  announce.transport_token = transport_token_;
  announce.remaining_s = Seconds(update.end - Clock::now());
  announce.drain_s = options.drain_limit.count();
  for (const int rank : ranks_) update.ranks[rank];

  auto phase_start = Clock::now();
  const auto end_phase = [&](double& seconds) {
    seconds = SecondsSince(phase_start);
    phase_start = Clock::now();
  };
  try {
    Announce(update);
    end_phase(report.announce_s);
    Transfer(update);
    end_phase(report.transfer_s);
    Verify(update);
    end_phase(report.verify_s);
  } catch (const Failure& failure) {
    AbortAndExplain(update, failure.reason);
  } catch (...) {
    SendToAll(Encode(UpdateAbort{announce.update, "the trainer failed"}));
    throw;
  }
  if (update.decision == Update::Decision::kOpen) {
    Commit(update);
    end_phase(report.commit_s);
  }
  manifest_->version = report.version;
  report.total_s = SecondsSince(start);
  SendToAll(Encode(UpdateReport{report}));
  return report;
}

}  // namespace rollcast
