#include "trainer_bridge/rollout_rank.h"

#include <utility>

#include "rollout/unicode.h"

namespace rollcast {

namespace {

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

Clock::duration Ticks(std::chrono::duration<double> d) {
  return std::chrono::duration_cast<Clock::duration>(d);
}

// To tell peers how the job has ended before this process does.
constexpr auto kFarewell = std::chrono::seconds(1);

}  // namespace

RolloutRank::RolloutRank(Communicator& communicator, const Roles& roles, RolloutWorker& worker,
                         UpdateTarget& target, std::vector<WeightTransportMaker> transports,
                         RolloutRankOptions options, RolloutRankSeams seams)
    : communicator_(communicator),
      rank_(communicator.rank()),
      workers_(roles.workers()),
      trainer_(roles.trainer()),
      worker_(worker),
      target_(target),
      options_(std::move(options)),
      seams_(std::move(seams)),
      receiver_(communicator, target, std::move(transports),
                {.service = [this] { Round(/*in_service=*/true); },
                 .check = nullptr,
                 .on_report = seams_.on_update}),
      start_(Clock::now()),
      coordinator_heard_(start_),
      last_round_(start_),
      next_beat_(start_) {
  if (rank_ != workers_.front()) return;
  CoordinatorOptions o;
  o.workers = workers_;
  o.trainer = trainer_;
  o.max_tries = options_.max_tries;
  o.max_policy_lag = options_.max_policy_lag;
  o.heartbeat = options_.heartbeat;
  o.silence = options_.silence;
  o.startup = options_.startup;
  o.stop_grace = options_.stop_grace;
  CoordinatorSeams s;
  s.send = [this](int rank, JobMessage message) { Send(rank, message); };
  s.live_version = [this] { return target_.version(); };
  s.append = seams_.append;
  s.warn = seams_.warn;
  coordinator_ = std::make_unique<Coordinator>(std::move(o), std::move(s), start_);
}

RolloutRank::~RolloutRank() = default;

std::string RolloutRank::Run() {
  Send(workers_.front(), options_.ready);
  Backoff backoff;
  while (!finished_) {
    if (Round(/*in_service=*/false))
      backoff.Reset();
    else
      backoff.Wait();
  }
  return stopped_;
}

bool RolloutRank::Round(bool in_service) {
  bool busy = false;
  while (!finished_) {
    std::optional<Message> message = communicator_.Poll();
    if (!message.has_value()) break;
    Dispatch(std::move(*message));
    busy = true;
  }
  if (finished_) return true;
  worker_.ThrowIfFailed();
  SendResults();
  Pull();
  if (!in_service) receiver_.Tick();

  const auto now = Clock::now();
  if (coordinator_ != nullptr) {
    coordinator_->Tick(now);
    if (seams_.drive && coordinator_->started() && !in_service && seams_.drive(*coordinator_))
      FinishJob();
  } else {
    CheckCoordinator(now);
  }
  last_round_ = now;
  if (now >= next_beat_) {
    next_beat_ = now + Ticks(options_.heartbeat);
    Beat();
  }
  if (seams_.check) seams_.check();
  if (seams_.stop && !asked_to_stop_) AskToStop();
  return busy;
}

void RolloutRank::AskToStop() {
  const std::string why = seams_.stop();
  if (why.empty()) return;
  if (!started_) throw Error(why);  // nothing has been handed out
  asked_to_stop_ = true;
  Send(workers_.front(), StopMessage{why});
}

void RolloutRank::Dispatch(Message message) {
  const auto now = Clock::now();
  const int source = message.source;
  if (source == workers_.front()) coordinator_heard_ = now;
  if (coordinator_ != nullptr) coordinator_->Heard(source, now);

  std::optional<JobMessage> job = DecodeJob(message.bytes);
  if (!job.has_value()) {
    if (!receiver_.Handle(message))
      throw Error(StrCat("rank ", rank_, " got a message of the unknown type ",
                         static_cast<int>(TypeOf(message.bytes)), " from rank ", source));
    return;
  }
  if (std::holds_alternative<WorkMessage>(*job) || std::holds_alternative<StartMessage>(*job) ||
      (std::holds_alternative<AbortMessage>(*job) && source != trainer_)) {
    HandleAsWorker(std::move(*job));
  } else if (coordinator_ == nullptr) {
    HandleAsWorker(std::move(*job));
  } else if (std::holds_alternative<FinishMessage>(*job)) {
    FinishJob();
  } else if (const auto* fail = std::get_if<FailMessage>(&*job); fail && source == trainer_) {
    throw Error(StrCat("the trainer (rank ", trainer_, ") has failed: ", fail->message));
  } else {
    coordinator_->Handle(source, std::move(*job), now);
  }
}

void RolloutRank::HandleAsWorker(JobMessage message) {
  if (auto* work = std::get_if<WorkMessage>(&message)) {
    if (!work->groups.empty()) {
      ++hand_outs_;
      pull_.reset();
    }
    for (GroupWork& group : work->groups) worker_.SubmitGroup(std::move(group));
    for (ScoreWork& score : work->scores) worker_.SubmitScore(std::move(score));
  } else if (std::holds_alternative<StartMessage>(message)) {
    started_ = true;
  } else if (const auto* abort = std::get_if<AbortMessage>(&message)) {
    worker_.AbortAll(abort->message);
  } else if (const auto* finish = std::get_if<FinishMessage>(&message)) {
    finished_ = true;
    stopped_ = finish->stopped;
  } else if (const auto* fail = std::get_if<FailMessage>(&message)) {
    throw Error(fail->message);
  } else {
    RC_CHECK(std::holds_alternative<BeatMessage>(message), "message ", message.index(),
             " is not for a worker");
  }
}

void RolloutRank::FinishJob() {
  stopped_ = coordinator_->stop_reason();
  if (seams_.close) seams_.close(stopped_);
  for (int rank : workers_)
    if (rank != rank_) Send(rank, FinishMessage{stopped_});
  if (trainer_ >= 0) Send(trainer_, FinishMessage{stopped_});
  communicator_.Flush(Clock::now() + kFarewell);
  finished_ = true;
}

void RolloutRank::Send(int rank, const JobMessage& message) {
  communicator_.Send(rank, EncodeJob(message));
}

void RolloutRank::SendResults() {
  std::vector<WorkerResult> results = worker_.TakeResults();
  if (results.empty()) return;
  ResultsMessage message;
  size_t bytes = 0;
  const auto send = [&] {
    Send(workers_.front(), std::exchange(message, {}));
    bytes = 0;
  };
  for (WorkerResult& result : results) {
    if (auto* trajectory = std::get_if<Trajectory>(&result)) {
      bytes += WireBytes(*trajectory);
      message.trajectories.push_back(std::move(*trajectory));
    } else {
      auto& score = std::get<ScoreResult>(result);
      bytes += 4 * (score.logprob_raw.size() + score.logits.size());
      message.scores.push_back(std::move(score));
    }
    if (bytes >= kMessageBytes) send();
  }
  if (!message.trajectories.empty() || !message.scores.empty()) send();
}

void RolloutRank::Pull() {
  if (!started_) return;
  const PullMessage pull{worker_.FreeRoom(), hand_outs_};
  if (pull.room <= 0 || (pull_.has_value() && pull.room <= pull_->room)) return;
  Send(workers_.front(), pull);
  pull_ = pull;
}

void RolloutRank::Beat() {
  const RolloutWorkerStats stats = worker_.stats();
  WorkerBeat beat;
  beat.rank = rank_;
  beat.version = target_.version();
  beat.running = stats.engine.running;
  beat.waiting = stats.engine.waiting;
  beat.unscored = stats.unscored;
  beat.room = worker_.FreeRoom();
  beat.pages_used = stats.engine.pages_used;
  beat.pages_total = stats.engine.pages_total;
  beat.steps = stats.engine.steps;
  beat.prefill_tokens = stats.engine.prefill_tokens;
  beat.decode_tokens = stats.engine.decode_tokens;
  beat.cached_tokens = stats.engine.cached_tokens;
  beat.preemptions = stats.engine.preemptions;
  beat.step_s = stats.engine.step_s;
  beat.score_s = stats.score_s;
  Send(workers_.front(), BeatMessage{beat});
}

void RolloutRank::CheckCoordinator(Clock::time_point now) {
  // While this thread was away nobody could be heard.
  const Clock::duration away = now - last_round_;
  if (away > Ticks(options_.heartbeat / 2)) coordinator_heard_ += away;
  if (!started_) {
    if (now - start_ > Ticks(options_.startup))
      throw PeerLost(workers_.front(),
                     StrCat("rank ", rank_, " has waited ", Seconds(now - start_),
                            " s for the coordinator (rank ", workers_.front(), ") to start"));
    coordinator_heard_ = now;
  }
  if (now - coordinator_heard_ > Ticks(options_.silence))
    throw PeerLost(workers_.front(), StrCat("the coordinator (rank ", workers_.front(),
                                            ") is lost: no sign of life for ",
                                            Seconds(now - coordinator_heard_), " s"));
}

void TellOfFailure(Communicator& communicator, const Roles& roles,
                   const std::exception& failure) noexcept {
  try {
    const int rank = communicator.rank();
    const int coordinator = roles.workers().front();
    const std::vector<std::byte> bytes = EncodeJob(FailMessage{OneLine(failure.what())});
    const auto* lost = dynamic_cast<const PeerLost*>(&failure);
    const bool headless = lost != nullptr && lost->rank() == coordinator;
    if (headless && roles.trainer() >= 0 && rank != roles.trainer()) {
      communicator.Send(roles.trainer(), bytes);
    } else if (rank != coordinator) {
      communicator.Send(coordinator, bytes);
    } else {
      for (int peer = 0; peer < communicator.size(); ++peer)
        if (peer != rank) communicator.Send(peer, bytes);
    }
    communicator.Flush(Clock::now() + kFarewell);
  } catch (const std::exception&) {
    // The peers find out by themselves, at their deadline.
  }
}

}  // namespace rollcast
