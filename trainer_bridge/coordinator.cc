#include "trainer_bridge/coordinator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "rollout/version_gate.h"

namespace rollcast {

namespace {

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

Clock::duration Ticks(std::chrono::duration<double> d) {
  return std::chrono::duration_cast<Clock::duration>(d);
}

// A completion that no rank can account for.
Trajectory Unaccounted(const GroupWork& work, int32_t sample, int32_t attempt, int rank) {
  Trajectory t;
  t.prompt_id = work.prompt_id;
  t.group_id = work.group_id;
  t.sample_index = sample;
  t.group_size = work.group_size;
  t.attempt = attempt;
  t.rank = rank;
  t.sampling = work.sampling;
  t.sampling.seed = CompletionSeed(work.sampling.seed, PromptIdHash(work.prompt_id),
                                   static_cast<uint64_t>(sample));
  t.prompt = work.prompt;
  t.reward = std::numeric_limits<double>::quiet_NaN();
  t.outcome = Outcome::kFailed;
  return t;
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, CoordinatorSeams seams, Clock::time_point now)
    : options_(std::move(options)),
      seams_(std::move(seams)),
      trainer_heard_(now),
      startup_deadline_(now + Ticks(options_.startup)),
      last_tick_(now),
      next_beat_(now) {
  RC_CHECK(!options_.workers.empty());
  for (int rank : options_.workers) workers_[rank].heard = now;
}

int Coordinator::alive() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](auto& w) { return !w.second.lost; }));
}

void Coordinator::Heard(int rank, Clock::time_point now) {
  if (const auto it = workers_.find(rank); it != workers_.end())
    it->second.heard = now;
  else if (rank == options_.trainer)
    trainer_heard_ = now;
}

void Coordinator::Handle(int source, JobMessage message, Clock::time_point now) {
  Heard(source, now);
  const auto worker = workers_.find(source);
  if (worker != workers_.end() && worker->second.lost) {
    // It was only slow. Its work is elsewhere by now, and a half-alive rank must not stay.
    if (!std::holds_alternative<FailMessage>(message))
      seams_.send(source, FailMessage{StrCat("rank ", source,
                                             " has been left behind: ", worker->second.why)});
    return;
  }

  if (auto* ready = std::get_if<ReadyMessage>(&message)) {
    OnReady(source, *ready);
  } else if (auto* pull = std::get_if<PullMessage>(&message)) {
    RC_CHECK(worker != workers_.end(), "pull from rank ", source);
    worker->second.has_pulled = true;
    if (pull->hand_outs == worker->second.hand_outs) worker->second.room = pull->room;
  } else if (auto* results = std::get_if<ResultsMessage>(&message)) {
    OnResults(source, std::move(*results));
  } else if (auto* submit = std::get_if<SubmitMessage>(&message)) {
    Submit(std::move(submit->groups));
  } else if (auto* collect = std::get_if<CollectMessage>(&message); collect && !collect->groups) {
    // Withdrawn, unless its reply is on its way already.
    if (collect_.has_value() && collect_->request == collect->request) collect_->groups = 0;
  } else if (collect) {
    RC_CHECK(!collect_.has_value(), "a second Collect before the reply to the first");
    collect_ = Collect{collect->request, std::max(collect->groups, 1),
                       now + Ticks(std::chrono::duration<double>(collect->timeout_s))};
  } else if (auto* score = std::get_if<ScoreMessage>(&message)) {
    AskForScore(std::move(score->work));
  } else if (auto* ask = std::get_if<StatsMessage>(&message)) {
    seams_.send(source, StatsReply{ask->request, stats()});
  } else if (auto* leave = std::get_if<LeaveBehindMessage>(&message)) {
    for (int32_t rank : leave->ranks) Lose(rank, leave->message, now);
  } else if (auto* beat = std::get_if<BeatMessage>(&message)) {
    if (worker != workers_.end() && beat->beat.has_value()) worker->second.beat = *beat->beat;
  } else if (auto* abort = std::get_if<AbortMessage>(&message)) {
    Abort(abort->message);
  } else if (auto* stop = std::get_if<StopMessage>(&message)) {
    Stop(stop->message, now);
  } else if (auto* fail = std::get_if<FailMessage>(&message)) {
    // A rank that says what broke it is lost like a silent one, only sooner.
    Lose(source, fail->message, now);
  } else {
    RC_CHECK(false, "message ", message.index(), " from rank ", source,
             " is not for the coordinator");
  }
  HandOut();
  TryReply(now);
}

void Coordinator::OnReady(int source, const ReadyMessage& message) {
  Worker& worker = workers_.at(source);
  worker.ready = true;
  if (!reference_.has_value()) {
    reference_ = message;
    reference_rank_ = source;
  }
  const auto compare = [&](const char* what, uint64_t theirs, uint64_t ours) {
    if (theirs != ours)
      throw Error(StrCat("rank ", source, " and rank ", reference_rank_, " have loaded different ",
                         what, " (digests ", theirs, " and ", ours,
                         "); every rank needs the same checkpoint"));
  };
  compare("models", message.manifest_digest, reference_->manifest_digest);
  compare("weights", message.weights_digest, reference_->weights_digest);
  if (!std::all_of(workers_.begin(), workers_.end(), [](auto& w) { return w.second.ready; }))
    return;
  started_ = true;
  for (const auto& [rank, w] : workers_) seams_.send(rank, StartMessage{message.weights_digest});
  if (options_.trainer >= 0) seams_.send(options_.trainer, StartMessage{message.weights_digest});
}

void Coordinator::Submit(std::vector<GroupWork> groups) {
  for (GroupWork& work : groups) {
    RC_CHECK_GE(work.group_size, 1, "group ", work.group_id);
    Unit unit{work.group_id, work.attempt, {}};
    for (int32_t i = 0; i < work.group_size; ++i) unit.samples.push_back(i);
    work.samples.clear();
    Group group;
    group.slots.resize(static_cast<size_t>(work.group_size));
    group.work = std::move(work);
    const auto [it, is_new] = groups_.emplace(unit.group_id, std::move(group));
    RC_CHECK(is_new, "group id ", unit.group_id, " is in use");
    queue_.push_back(std::move(unit));
  }
  HandOut();
}

int Coordinator::Neediest(int samples) const {
  int best = -1;
  for (const auto& [rank, worker] : workers_) {
    if (worker.lost || !worker.room.has_value()) continue;
    // A group larger than a rank's whole room still has to go somewhere.
    if (*worker.room < samples && worker.assigned > 0) continue;
    if (best < 0 || worker.assigned < workers_.at(best).assigned) best = rank;
  }
  return best;
}

void Coordinator::HandOut() {
  if (queue_.empty() || !started_ || !stop_reason_.empty()) return;
  // The first rank that asks must not draw everything before the others have asked once.
  for (const auto& [rank, worker] : workers_)
    if (!worker.lost && !worker.has_pulled) return;

  std::map<int, WorkMessage> work;
  while (!queue_.empty()) {
    const int samples = static_cast<int>(queue_.front().samples.size());
    const int rank = Neediest(samples);
    if (rank < 0) break;
    Unit unit = std::move(queue_.front());
    queue_.pop_front();
    Group& group = groups_.at(unit.group_id);
    for (int32_t sample : unit.samples) {
      Slot& slot = group.slots[static_cast<size_t>(sample)];
      slot.state = SlotState::kAssigned;
      slot.rank = rank;
      slot.attempt = unit.attempt;
    }
    Worker& worker = workers_.at(rank);
    worker.assigned += samples;
    *worker.room -= samples;
    GroupWork piece = group.work;
    piece.samples = std::move(unit.samples);
    piece.attempt = unit.attempt;
    work[rank].groups.push_back(std::move(piece));
  }
  for (auto& [rank, message] : work) {
    workers_.at(rank).room.reset();
    ++workers_.at(rank).hand_outs;
    seams_.send(rank, std::move(message));
  }
}

void Coordinator::Resolve(Group& group, Slot& slot, Trajectory result) {
  slot.state = SlotState::kDone;
  slot.result = std::move(result);
  if (++group.done == group.work.group_size) ready_.push_back(group.work.group_id);
}

void Coordinator::Stop(const std::string& reason, Clock::time_point now) {
  RC_CHECK(!reason.empty());
  RC_CHECK_LT(options_.trainer, 0, "a job with a trainer ends with it");
  if (!stop_reason_.empty()) return;
  stop_reason_ = reason;
  stop_deadline_ = now + Ticks(options_.stop_grace);
  Abort(reason);
}

void Coordinator::Abort(const std::string& reason) {
  for (auto& [group_id, group] : groups_) group.aborted = reason;
  for (const Unit& unit : std::exchange(queue_, {}))
    for (const int32_t sample : unit.samples)
      ResolveAborted(groups_.at(unit.group_id), sample, reason);
  for (const auto& [rank, worker] : workers_)
    if (!worker.lost) seams_.send(rank, AbortMessage{reason});
}

void Coordinator::ResolveAborted(Group& group, int32_t sample, const std::string& message) {
  Slot& slot = group.slots[static_cast<size_t>(sample)];
  Trajectory t = Unaccounted(group.work, sample, slot.attempt, slot.rank);
  t.outcome = Outcome::kAborted;
  t.finish_reason = FinishReason::kAbort;
  t.message = message;
  Resolve(group, slot, std::move(t));
}

void Coordinator::OnResults(int source, ResultsMessage message) {
  Worker& worker = workers_.at(source);
  for (Trajectory& t : message.trajectories) {
    const auto it = groups_.find(t.group_id);
    if (it == groups_.end() || t.sample_index < 0 || t.sample_index >= it->second.work.group_size)
      continue;
    Slot& slot = it->second.slots[static_cast<size_t>(t.sample_index)];
    if (slot.state != SlotState::kAssigned || slot.rank != source || slot.attempt != t.attempt)
      continue;
    --worker.assigned;
    // Text prompts are encoded by the rank; another try must start from the same ids.
    if (it->second.work.prompt.empty()) it->second.work.prompt = t.prompt;
    Resolve(it->second, slot, std::move(t));
  }
  for (ScoreResult& score : message.scores) {
    const auto it = scores_.find(score.id);
    if (it == scores_.end() || it->second.first != source) continue;
    scores_.erase(it);
    RC_CHECK_GE(options_.trainer, 0);
    seams_.send(options_.trainer, ScoreReply{std::move(score)});
  }
}

void Coordinator::AskForScore(ScoreWork work) {
  int rank = -1;
  for (const auto& [candidate, worker] : workers_)
    if (!worker.lost && (rank < 0 || worker.assigned < workers_.at(rank).assigned))
      rank = candidate;
  RC_CHECK_GE(rank, 0);
  WorkMessage message;
  message.scores.push_back(work);
  scores_[work.id] = {rank, std::move(work)};
  seams_.send(rank, std::move(message));
}

void Coordinator::GateReady(PolicyVersion live) {
  std::vector<Unit> again;
  std::erase_if(ready_, [&](uint64_t group_id) {
    Group& group = groups_.at(group_id);
    std::map<int32_t, Unit> retry;  // by attempt
    for (size_t i = group.taken; i < group.slots.size(); ++i) {
      Slot& slot = group.slots[i];
      Trajectory& t = slot.result;
      if (t.outcome != Outcome::kCompleted) continue;
      const GateDecision decision = VersionGate(t.spans, static_cast<int64_t>(t.completion.size()),
                                                live, options_.max_policy_lag);
      if (decision.accepted()) continue;
      if (decision.verdict != GateVerdict::kOverLag) {
        t.outcome = Outcome::kFailed;
        t.message = StrCat("rank ", slot.rank, ": ", decision.reason);
        continue;
      }
      if (slot.attempt + 1 >= options_.max_tries || !group.aborted.empty()) {
        t.outcome = Outcome::kOverLag;
        t.message = StrCat(decision.reason, "; given up after ", slot.attempt + 1, " tries",
                           group.aborted.empty() ? "" : ": ", group.aborted);
        continue;
      }
      Unit& unit =
          retry.try_emplace(slot.attempt, Unit{group_id, slot.attempt + 1, {}}).first->second;
      unit.samples.push_back(t.sample_index);
    }
    if (retry.empty()) return false;
    for (auto& [attempt, unit] : retry) {
      for (int32_t sample : unit.samples) {
        Slot& slot = group.slots[static_cast<size_t>(sample)];
        slot.state = SlotState::kQueued;
        slot.result = {};
        --group.done;
        ++regenerated_;
      }
      again.push_back(std::move(unit));
    }
    return true;
  });
  // What has waited longest comes first.
  queue_.insert(queue_.begin(), std::make_move_iterator(again.begin()),
                std::make_move_iterator(again.end()));
  HandOut();
}

std::vector<Trajectory> Coordinator::TakeReady(int max_groups, size_t max_bytes) {
  const PolicyVersion live = seams_.live_version();
  GateReady(live);
  std::vector<Trajectory> taken;
  size_t bytes = 0;
  for (int n = 0; n < max_groups && !ready_.empty(); ++n) {
    Group& group = groups_.at(ready_.front());
    size_t rest = 0;
    for (size_t i = group.taken; i < group.slots.size(); ++i)
      rest += WireBytes(group.slots[i].result);
    if (!taken.empty() && bytes + rest > max_bytes) break;
    while (group.taken < group.slots.size()) {
      Trajectory& t = group.slots[group.taken].result;
      bytes += WireBytes(t);
      if (!taken.empty() && bytes > max_bytes) break;
      t.live_version_at_return = live;
      taken.push_back(std::move(t));
      ++group.taken;
    }
    if (group.taken < group.slots.size()) break;
    groups_.erase(ready_.front());
    ready_.pop_front();
  }
  if (!taken.empty() && seams_.append) seams_.append(taken);
  returned_ += static_cast<int64_t>(taken.size());
  return taken;
}

void Coordinator::TryReply(Clock::time_point now) {
  if (!collect_.has_value()) return;
  GateReady(seams_.live_version());
  const int ready = static_cast<int>(ready_.size());
  if (ready < collect_->groups && ready < pending_groups() && now < collect_->deadline) return;
  CollectReply reply;
  reply.request = collect_->request;
  const int wanted = std::min(ready, collect_->groups);
  const int before = pending_groups();
  reply.live = seams_.live_version();
  reply.trajectories = TakeReady(wanted);
  reply.pending_groups = pending_groups();
  reply.groups = before - reply.pending_groups;
  reply.more = reply.groups < wanted;
  collect_.reset();
  seams_.send(options_.trainer, std::move(reply));
}

void Coordinator::Tick(Clock::time_point now) {
  // While the bridge thread was away (a bulk transfer, a suspended process) nobody could be heard.
  const Clock::duration away = now - last_tick_;
  last_tick_ = now;
  if (away > Ticks(options_.heartbeat / 2)) {
    trainer_heard_ += away;
    for (auto& [rank, worker] : workers_) worker.heard += away;
  }
  if (now >= next_beat_) {
    next_beat_ = now + Ticks(options_.heartbeat);
    for (const auto& [rank, worker] : workers_)
      if (!worker.lost && rank != options_.workers.front()) seams_.send(rank, BeatMessage{});
    if (options_.trainer >= 0) seams_.send(options_.trainer, BeatMessage{});
  }
  const auto silent = [&](Clock::time_point heard) {
    return now - heard > Ticks(options_.silence);
  };
  if (options_.trainer >= 0 && silent(trainer_heard_))
    Lose(options_.trainer, StrCat("no sign of life for ", Seconds(now - trainer_heard_), " s"),
         now);
  for (auto& [rank, worker] : workers_) {
    if (!started_) {
      // A rank that loads its weights cannot be heard.
      if (!worker.ready && now >= startup_deadline_)
        Lose(rank, StrCat("not ready within ", options_.startup.count(), " s of the start"), now);
      worker.heard = now;
    }
    if (!worker.lost && rank != options_.workers.front() && silent(worker.heard))
      Lose(rank, StrCat("no sign of life for ", Seconds(now - worker.heard), " s"), now);
  }
  if (!stop_reason_.empty() && now >= stop_deadline_)
    for (auto& [group_id, group] : groups_)
      for (size_t i = 0; i < group.slots.size(); ++i)
        if (const Slot& slot = group.slots[i]; slot.state == SlotState::kAssigned)
          ResolveAborted(group, static_cast<int32_t>(i),
                         StrCat(stop_reason_, "; rank ", slot.rank, " had not returned it within ",
                                options_.stop_grace.count(), " s"));
  TryReply(now);
}

void Coordinator::Lose(int rank, const std::string& why, Clock::time_point now) {
  if (rank == options_.trainer) throw Error(StrCat("the trainer (rank ", rank, ") is lost: ", why));
  Worker& worker = workers_.at(rank);
  if (worker.lost) return;
  worker.lost = true;
  worker.why = why;
  worker.room.reset();
  const std::string what = StrCat("rollout rank ", rank, " is lost: ", why);
  // Should it still listen, it must not stay; others may hold its groups from now on.
  if (rank != options_.workers.front())
    seams_.send(rank, FailMessage{StrCat("rank ", rank, " has been left behind: ", why)});
  if (rank == options_.workers.front() || alive() == 0 || !started_) throw Error(what);

  for (auto& [group_id, group] : groups_) {
    std::map<int32_t, Unit> again;  // by attempt
    for (size_t i = 0; i < group.slots.size(); ++i) {
      Slot& slot = group.slots[i];
      if (slot.state != SlotState::kAssigned || slot.rank != rank) continue;
      ++lost_;
      if (slot.lost_before || !group.aborted.empty()) {
        Trajectory t = Unaccounted(group.work, static_cast<int32_t>(i), slot.attempt, rank);
        t.message = what;
        Resolve(group, slot, std::move(t));
        continue;
      }
      slot.state = SlotState::kQueued;
      slot.lost_before = true;
      again.try_emplace(slot.attempt, Unit{group_id, slot.attempt + 1, {}})
          .first->second.samples.push_back(static_cast<int32_t>(i));
    }
    for (auto& [attempt, unit] : again) queue_.push_front(std::move(unit));
  }
  worker.assigned = 0;
  if (seams_.warn) seams_.warn(what);
  if (options_.trainer >= 0) seams_.send(options_.trainer, RankLostMessage{rank, what});
  // Score requests are idempotent.
  for (auto& [id, entry] : std::exchange(scores_, {})) {
    if (entry.first == rank)
      AskForScore(std::move(entry.second));
    else
      scores_.emplace(id, std::move(entry));
  }
  HandOut();
  TryReply(now);
}

JobStats Coordinator::stats() const {
  JobStats stats;
  stats.version = seams_.live_version();
  for (const Unit& unit : queue_) stats.queued += static_cast<int32_t>(unit.samples.size());
  for (const auto& [rank, worker] : workers_) {
    if (worker.lost) continue;
    stats.assigned += worker.assigned;
    stats.workers.push_back(worker.beat);
    stats.workers.back().rank = rank;
  }
  stats.ready = static_cast<int32_t>(ready_.size());
  stats.returned = returned_;
  stats.regenerated = regenerated_;
  stats.lost = lost_;
  return stats;
}

}  // namespace rollcast
