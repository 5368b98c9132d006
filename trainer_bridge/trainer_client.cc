#include "trainer_bridge/trainer_client.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace rollcast {

namespace {

using Seconds = std::chrono::duration<double>;

Clock::duration Ticks(Seconds d) { return std::chrono::duration_cast<Clock::duration>(d); }

// Far beyond any job, and far within what Clock can add to now.
constexpr double kMaxSeconds = 1e9;

void CheckSeconds(const std::string& what, Seconds given, bool may_be_zero = false) {
  const double s = given.count();
  // Written so that a NaN is wrong.
  if ((may_be_zero ? s >= 0 : s > 0) && s <= kMaxSeconds) return;
  throw Error(StrCat(what, " is ", s, " s: must be ", may_be_zero ? "at least" : "above",
                     " 0 and at most ", kMaxSeconds, " s"));
}

}  // namespace

struct TrainerClient::Bridge {
  Communicator& communicator;
  const int coordinator;
  WeightPublisher& publisher;
  Clock::time_point start;
  Clock::time_point heard;
  Clock::time_point last_round;
  Clock::time_point next_beat;
  bool started = false;
  std::vector<int> to_leave_behind{};  // lost in the middle of an update
  std::optional<std::string> ended{};  // why, when the job has ended in the middle of an update

  void Send(const JobMessage& message) { communicator.Send(coordinator, EncodeJob(message)); }
};

class TrainerClient::Turn {
 public:
  /// Throws Error when the job is over, when `timeout` is none, and when another call has the turn
  /// for as long as that and as a rank may be silent.
  Turn(TrainerClient& client, const char* what, Seconds timeout, bool may_be_zero = false)
      : client_(client) {
    MutexLock lock(client_.mutex_);
    client_.ThrowIfOver();
    CheckSeconds(StrCat("the timeout of ", what), timeout, may_be_zero);
    const Seconds limit = timeout + client_.options_.silence;
    const auto deadline = Clock::now() + Ticks(limit);
    while (client_.in_turn_ && client_.changed_.WaitUntil(client_.mutex_, deadline)) {
    }
    client_.ThrowIfOver();
    if (client_.in_turn_)
      throw Error(StrCat("another call of the trainer has not ended within ", limit.count(),
                         " s, so there was no turn for ", what));
    client_.in_turn_ = true;
    client_.interrupted_ = false;
  }
  ~Turn() {
    MutexLock lock(client_.mutex_);
    client_.in_turn_ = false;
    client_.changed_.NotifyAll();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  TrainerClient& client_;
};

TrainerClient::TrainerClient(const TrainerClientOptions& options) : options_(options) {}
TrainerClient::~TrainerClient() = default;

void TrainerClient::Serve(Communicator& communicator, const Roles& roles,
                          std::vector<WeightTransportMaker> transports,
                          const std::string& transport, std::function<void()> check) {
  Bridge* current = nullptr;
  WeightPublisher publisher(communicator, roles.workers(), std::move(transports), transport,
                            [&](Message message) {
                              try {
                                Dispatch(*current, std::move(message));
                              } catch (const std::exception& e) {
                                current->ended = e.what();  // not the update's own failure alone
                                throw;
                              }
                              BeatIfDue(*current);
                            });
  const auto now = Clock::now();
  Bridge bridge{communicator, roles.workers().front(), publisher, now, now, now, now};
  current = &bridge;
  std::string why;
  try {
    Backoff backoff;
    while (true) {
      {
        MutexLock lock(mutex_);
        if (finished_) return;
        if (told_to_fail_.has_value()) {
          why = *told_to_fail_;
          break;
        }
      }
      if (check) check();
      if (Round(bridge))
        backoff.Reset();
      else
        backoff.Wait();
    }
  } catch (const std::exception& e) {
    why = e.what();
  }
  {
    MutexLock lock(mutex_);
    failure_ = why;
    changed_.NotifyAll();
  }
  throw Error(why);
}

bool TrainerClient::Round(Bridge& bridge) {
  bool busy = RunTask(bridge);
  if (bridge.ended.has_value()) throw Error(*bridge.ended);
  uint64_t withdrawn = 0;
  {
    MutexLock lock(mutex_);
    if (interrupted_) withdrawn = std::exchange(collecting_, 0);
  }
  if (withdrawn != 0) bridge.Send(CollectMessage{withdrawn, 0, 0});
  while (std::optional<Message> message = bridge.communicator.Poll()) {
    Dispatch(bridge, std::move(*message));
    busy = true;
  }
  for (int rank : std::exchange(bridge.to_leave_behind, {})) bridge.publisher.LeaveBehind(rank);
  BeatIfDue(bridge);
  CheckCoordinator(bridge);
  return busy;
}

bool TrainerClient::RunTask(Bridge& bridge) {
  std::function<void(Bridge&)> task;
  {
    MutexLock lock(mutex_);
    if (task_state_ != TaskState::kPosted) return false;
    task = std::exchange(task_, nullptr);
    task_state_ = TaskState::kRunning;
  }
  std::exception_ptr failure;
  try {
    task(bridge);
  } catch (...) {
    failure = std::current_exception();
  }
  MutexLock lock(mutex_);
  task_state_ = TaskState::kNone;
  task_failure_ = failure;
  changed_.NotifyAll();
  return true;
}

void TrainerClient::Dispatch(Bridge& bridge, Message message) {
  if (message.source == bridge.coordinator) bridge.heard = Clock::now();
  std::optional<JobMessage> job = DecodeJob(message.bytes);
  if (!job.has_value()) {
    if (!bridge.publisher.Handle(message))
      throw Error(StrCat("the trainer got a message of the unknown type ",
                         static_cast<int>(TypeOf(message.bytes)), " from rank ", message.source));
    return;
  }
  if (const auto* fail = std::get_if<FailMessage>(&*job)) throw Error(fail->message);
  if (const auto* lost = std::get_if<RankLostMessage>(&*job))
    bridge.to_leave_behind.push_back(lost->rank);
  if (std::holds_alternative<StartMessage>(*job)) bridge.started = true;

  MutexLock lock(mutex_);
  if (std::holds_alternative<StartMessage>(*job)) {
    started_ = true;
  } else if (auto* collected = std::get_if<CollectReply>(&*job)) {
    live_ = collected->live;
    collect_reply_ = std::move(*collected);
  } else if (auto* score = std::get_if<ScoreReply>(&*job)) {
    score_reply_ = std::move(score->result);
  } else if (auto* stats = std::get_if<StatsReply>(&*job)) {
    stats_reply_ = std::move(*stats);
  } else if (const auto* lost = std::get_if<RankLostMessage>(&*job)) {
    lost_.push_back(lost->rank);
  } else if (std::holds_alternative<FinishMessage>(*job)) {
    finished_ = true;
  } else {
    RC_CHECK(std::holds_alternative<BeatMessage>(*job), "message ", job->index(),
             " is not for the trainer");
  }
  changed_.NotifyAll();
}

void TrainerClient::BeatIfDue(Bridge& bridge) {
  const auto now = Clock::now();
  if (now < bridge.next_beat) return;
  bridge.next_beat = now + Ticks(options_.heartbeat);
  bridge.Send(BeatMessage{});
}

void TrainerClient::CheckCoordinator(Bridge& bridge) {
  const auto now = Clock::now();
  // While this thread was away (an update, a suspended process) nobody could be heard.
  const Clock::duration away = now - bridge.last_round;
  bridge.last_round = now;
  if (away > Ticks(options_.heartbeat / 2)) bridge.heard += away;
  if (!bridge.started) {
    bridge.heard = now;
    if (now - bridge.start > Ticks(options_.startup))
      throw PeerLost(bridge.coordinator,
                     StrCat("the ranks have not started within ", options_.startup.count(), " s"));
  }
  if (now - bridge.heard > Ticks(options_.silence))
    throw PeerLost(bridge.coordinator, StrCat("the coordinator (rank ", bridge.coordinator,
                                              ") is lost: no sign of life for ",
                                              Seconds(now - bridge.heard).count(), " s"));
}

bool TrainerClient::Arrived(Reply reply) const {
  switch (reply) {
    case Reply::kNone:
      return true;
    case Reply::kStart:
      return started_;
    case Reply::kCollect:
      return collect_reply_.has_value();
    case Reply::kScore:
      return score_reply_.has_value();
    case Reply::kStats:
      return stats_reply_.has_value();
    case Reply::kFinish:
      return finished_;
  }
  return false;
}

void TrainerClient::ThrowIfOver() const {
  if (failure_.has_value()) throw Error(*failure_);
  if (told_to_fail_.has_value()) throw Error(*told_to_fail_);
  if (finished_) throw Error("the job has been finished");
}

void TrainerClient::CheckRunning() const {
  MutexLock lock(mutex_);
  ThrowIfOver();
}

void TrainerClient::Call(const Turn&, std::function<void(Bridge&)> task, Reply reply,
                         const char* what, Seconds timeout) {
  const auto deadline = Clock::now() + Ticks(timeout);
  std::exception_ptr task_failure;
  {
    MutexLock lock(mutex_);
    ThrowIfOver();
    task_ = std::move(task);
    task_state_ = TaskState::kPosted;
    task_failure_ = nullptr;
    while (true) {
      const bool over = failure_.has_value();
      const bool late = Clock::now() >= deadline;
      if (task_state_ == TaskState::kNone && (task_failure_ != nullptr || Arrived(reply))) break;
      if (task_state_ != TaskState::kRunning && (over || late)) {
        task_ = nullptr;
        task_state_ = TaskState::kNone;
        if (over) throw Error(*failure_);
        throw Error(StrCat("no ", what, " within ", timeout.count(), " s"));
      }
      if (late)
        changed_.Wait(mutex_);
      else
        changed_.WaitUntil(mutex_, deadline);
    }
    task_failure = std::exchange(task_failure_, nullptr);
  }
  if (task_failure != nullptr) std::rethrow_exception(task_failure);
}

void TrainerClient::WaitUntilStarted() {
  const Turn turn(*this, "the wait for the start of all ranks", options_.startup);
  Call(
      turn, [](Bridge&) {}, Reply::kStart, "start of all ranks", options_.startup);
}

std::vector<uint64_t> TrainerClient::SubmitInTurn(const Turn& turn,
                                                  const std::vector<PromptGroup>& prompts,
                                                  int group_size, const SamplingParams& sampling,
                                                  bool want_hidden) {
  if (group_size < 1 || group_size > kMaxGroupSize)
    throw Error(
        StrCat("group size ", group_size, ": must be at least 1 and at most ", kMaxGroupSize));
  SubmitMessage message;
  std::vector<uint64_t> ids;
  for (const PromptGroup& prompt : prompts) {
    GroupWork work;
    work.group_id = next_group_++;
    work.prompt_id = prompt.prompt_id;
    work.prompt = prompt.tokens;
    work.text = prompt.text;
    work.add_special_tokens = prompt.add_special_tokens;
    work.reference = prompt.reference;
    work.metadata = prompt.metadata;
    work.group_size = group_size;
    work.sampling = prompt.sampling.value_or(sampling);
    work.in_flight = prompt.in_flight;
    work.want_hidden = want_hidden;
    ids.push_back(work.group_id);
    message.groups.push_back(std::move(work));
  }
  Call(
      turn, [&](Bridge& bridge) { bridge.Send(message); }, Reply::kNone, "submission",
      options_.silence);
  pending_groups_ += static_cast<int>(ids.size());
  return ids;
}

std::vector<uint64_t> TrainerClient::Submit(const std::vector<PromptGroup>& prompts, int group_size,
                                            const SamplingParams& sampling, bool want_hidden) {
  const Turn turn(*this, "Submit", options_.silence);
  return SubmitInTurn(turn, prompts, group_size, sampling, want_hidden);
}

Collected TrainerClient::CollectInTurn(const Turn& turn, int groups, Seconds timeout) {
  const auto deadline = Clock::now() + Ticks(timeout);
  Collected collected;
  collected.live = live_;
  collected.pending_groups = pending_groups_;
  bool more = true;
  // What is ready may take several replies. No update comes between: this call has the turn.
  while (more) {
    const Seconds left = std::max(Seconds(deadline - Clock::now()), Seconds(0));
    const CollectMessage message{next_request_++, groups - collected.groups, left.count()};
    {
      MutexLock lock(mutex_);
      if (interrupted_) break;
      collect_reply_.reset();
    }
    const auto send = [&](Bridge& bridge) {
      bridge.Send(message);
      MutexLock lock(mutex_);
      collecting_ = message.request;
    };
    try {
      Call(turn, send, Reply::kCollect, "reply to Collect from the coordinator",
           left + options_.silence);
    } catch (const Error& e) {
      // A reply that comes later would have been gated against a version that is live no more.
      Fail(e.what());
      throw;
    }
    CollectReply reply;
    {
      MutexLock lock(mutex_);
      reply = std::move(*collect_reply_);
      collect_reply_.reset();
      collecting_ = 0;
    }
    RC_CHECK_EQ(reply.request, message.request);
    collected.groups += reply.groups;
    collected.pending_groups = pending_groups_ = reply.pending_groups;
    collected.live = reply.live;
    for (Trajectory& t : reply.trajectories) collected.trajectories.push_back(std::move(t));
    more = reply.more && collected.groups < groups;
  }
  return collected;
}

Collected TrainerClient::Collect(int groups, Seconds timeout) {
  const Turn turn(*this, "Collect", timeout, /*may_be_zero=*/true);
  return CollectInTurn(turn, groups, timeout);
}

void TrainerClient::Interrupt() {
  MutexLock lock(mutex_);
  interrupted_ = in_turn_;
}

Collected TrainerClient::Cancel(Seconds timeout) {
  Interrupt();
  const Turn turn(*this, "Cancel", timeout);
  const auto deadline = Clock::now() + Ticks(timeout);
  const AbortMessage message{"cancelled by the trainer"};
  Call(
      turn, [&](Bridge& bridge) { bridge.Send(message); }, Reply::kNone, "cancellation",
      options_.silence);
  return CollectInTurn(turn, std::numeric_limits<int32_t>::max(), Seconds(deadline - Clock::now()));
}

std::vector<Trajectory> TrainerClient::Rollout(const std::vector<PromptGroup>& prompts,
                                               int group_size, const SamplingParams& sampling,
                                               bool want_hidden, Seconds timeout) {
  const Turn turn(*this, "Rollout", timeout);
  if (pending_groups_ > 0)
    throw Error(StrCat("Rollout while ", pending_groups_.load(),
                       " groups of earlier submissions are pending; collect or cancel them first"));
  const auto deadline = Clock::now() + Ticks(timeout);
  const auto ids = SubmitInTurn(turn, prompts, group_size, sampling, want_hidden);
  // All at once, so that the lag of all is checked against one version.
  Collected collected =
      CollectInTurn(turn, static_cast<int>(ids.size()), Seconds(deadline - Clock::now()));
  if (collected.groups < static_cast<int>(ids.size()))
    throw Error(StrCat("rollout: ", collected.groups, " of ", ids.size(), " groups within ",
                       timeout.count(), " s; those are in the trajectory file alone, the other ",
                       collected.pending_groups, " go on: collect or cancel them"));
  std::stable_sort(
      collected.trajectories.begin(), collected.trajectories.end(),
      [](const Trajectory& a, const Trajectory& b) { return a.group_id < b.group_id; });
  return std::move(collected.trajectories);
}

SyncReport TrainerClient::Publish(const UpdateOptions& options,
                                  const std::vector<NamedTensor>& tensors) {
  CheckRunning();
  CheckSeconds("the deadline of an update", options.deadline);
  CheckSeconds("the drain limit of an update", options.drain_limit);
  const Turn turn(*this, "Publish", options.deadline);
  SyncReport report;
  Call(
      turn, [&](Bridge& bridge) { report = PublishOnBridge(bridge, options, tensors); },
      Reply::kNone, "update", options.deadline + options_.silence);
  return report;
}

SyncReport TrainerClient::PublishOnBridge(Bridge& bridge, const UpdateOptions& options,
                                          const std::vector<NamedTensor>& tensors) {
  SyncReport report = bridge.publisher.Publish(options, tensors);
  if (report.committed) live_ = report.version;
  const std::vector<int> late = bridge.publisher.late();
  if (late.empty() || late.size() == bridge.publisher.ranks().size()) return report;
  // Whoever is late may hold other weights than the rest, or nothing at all. Without it the next
  // update can succeed.
  bridge.Send(LeaveBehindMessage{{late.begin(), late.end()}, report.error});
  for (int rank : late) bridge.publisher.LeaveBehind(rank);
  return report;
}

WireManifest TrainerClient::Manifest(Seconds timeout) {
  const Turn turn(*this, "Manifest", timeout);
  WireManifest manifest;
  Call(
      turn,
      [&](Bridge& bridge) { manifest = bridge.publisher.Manifest(Clock::now() + Ticks(timeout)); },
      Reply::kNone, "manifest", timeout + options_.silence);
  return manifest;
}

ScoreResult TrainerClient::Score(const std::vector<int32_t>& tokens, bool want_logits,
                                 Seconds timeout) {
  const Turn turn(*this, "Score", timeout);
  const ScoreMessage message{{next_request_++, tokens, want_logits}};
  const auto deadline = Clock::now() + Ticks(timeout);
  {
    MutexLock lock(mutex_);
    score_reply_.reset();
  }
  Call(
      turn, [&](Bridge& bridge) { bridge.Send(message); }, Reply::kScore, "scores", timeout);
  MutexLock lock(mutex_);
  // The reply to a call that timed out may come first.
  while (score_reply_->id != message.work.id) {
    score_reply_.reset();
    while (!score_reply_.has_value()) {
      if (failure_.has_value()) throw Error(*failure_);
      if (!changed_.WaitUntil(mutex_, deadline))
        throw Error(StrCat("no scores within ", timeout.count(), " s"));
    }
  }
  ScoreResult result = std::move(*score_reply_);
  score_reply_.reset();
  return result;
}

JobStats TrainerClient::Stats(Seconds timeout) {
  const Turn turn(*this, "Stats", timeout);
  const StatsMessage message{next_request_++};
  {
    MutexLock lock(mutex_);
    stats_reply_.reset();
  }
  Call(
      turn, [&](Bridge& bridge) { bridge.Send(message); }, Reply::kStats, "statistics", timeout);
  MutexLock lock(mutex_);
  JobStats stats = std::move(stats_reply_->stats);
  stats_reply_.reset();
  return stats;
}

std::vector<int> TrainerClient::LostRanks() const {
  MutexLock lock(mutex_);
  return lost_;
}

void TrainerClient::Finish(Seconds timeout) {
  const Turn turn(*this, "Finish", timeout);
  Call(
      turn, [](Bridge& bridge) { bridge.Send(FinishMessage{}); }, Reply::kFinish, "end of the job",
      timeout);
}

void TrainerClient::Fail(const std::string& why) {
  MutexLock lock(mutex_);
  if (!told_to_fail_.has_value()) told_to_fail_ = why;
  changed_.NotifyAll();
}

}  // namespace rollcast
