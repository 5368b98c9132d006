#include "rollout/rollout_worker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace rollcast {

namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr auto kStatsInterval = std::chrono::milliseconds(100);
constexpr auto kIdleWait = std::chrono::milliseconds(200);

RolloutWorkerOptions WithDefaults(RolloutWorkerOptions options, const Engine& engine) {
  if (options.max_outstanding <= 0) {
    const int load = engine.config().max_running;
    options.max_outstanding = load + std::max(load / 2, 1);
  }
  options.score_batch = std::max(options.score_batch, 1);
  return options;
}

FinishReason ToFinishReason(CompletionState state) {
  switch (state) {
    case CompletionState::kStopId:
      return FinishReason::kStopId;
    case CompletionState::kStopCallback:
      return FinishReason::kStopString;
    case CompletionState::kLength:
      return FinishReason::kLength;
    case CompletionState::kAborted:
      return FinishReason::kAbort;
    case CompletionState::kScored:
    case CompletionState::kFailed:
      return FinishReason::kNone;
  }
  return FinishReason::kNone;
}

// What is known of a completion before anything has been generated.
Trajectory Skeleton(const GroupWork& work, int32_t sample_index, const SamplingParams& sampling,
                    int rank) {
  Trajectory t;
  t.prompt_id = work.prompt_id;
  t.group_id = work.group_id;
  t.sample_index = sample_index;
  t.group_size = work.group_size;
  t.attempt = work.attempt;
  t.rank = rank;
  t.sampling = sampling;
  t.prompt = work.prompt;
  t.reward = std::numeric_limits<double>::quiet_NaN();
  return t;
}

}  // namespace

RolloutWorker::RolloutWorker(Engine& engine, const Tokenizer* tokenizer,
                             std::unique_ptr<Scorer> scorer, const RolloutWorkerOptions& options)
    : engine_(engine),
      tokenizer_(tokenizer),
      scorer_(std::move(scorer)),
      options_(WithDefaults(options, engine)) {
  engine_thread_ = std::thread([this] { EngineLoop(); });
  sink_thread_ = std::thread([this] { SinkLoop(); });
}

RolloutWorker::~RolloutWorker() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  engine_.Wake();
  engine_thread_.join();
  sink_thread_.join();
}

int RolloutWorker::FreeRoom() const {
  MutexLock lock(mutex_);
  return options_.max_outstanding - stats_.outstanding;
}

void RolloutWorker::SubmitGroup(GroupWork work) {
  for (int32_t sample : work.samples)
    RC_CHECK(sample >= 0 && sample < work.group_size, "sample ", sample, " of group ",
             work.group_id);
  {
    MutexLock lock(mutex_);
    stats_.outstanding += static_cast<int>(work.samples.size());
  }
  Push(std::move(work));
}

void RolloutWorker::SubmitScore(ScoreWork work) {
  {
    MutexLock lock(mutex_);
    ++stats_.outstanding;
  }
  Push(std::move(work));
}

void RolloutWorker::AbortGroup(uint64_t group_id, std::string message) {
  Push(Abort{group_id, std::move(message)});
}

void RolloutWorker::AbortAll(std::string message) { Push(Abort{std::nullopt, std::move(message)}); }

void RolloutWorker::Push(Command command) {
  {
    MutexLock lock(mutex_);
    inbox_.push_back(std::move(command));
  }
  // Wake takes the engine's mutex, which is held for as long as a step lasts; between steps the
  // engine thread looks into the inbox by itself.
  if (engine_idle_) engine_.Wake();
}

std::vector<WorkerResult> RolloutWorker::TakeResults() {
  MutexLock lock(mutex_);
  stats_.outstanding -= static_cast<int>(results_.size());
  return std::exchange(results_, {});
}

bool RolloutWorker::WaitForResults(SteadyClock::time_point deadline) {
  MutexLock lock(mutex_);
  while (results_.empty() && failure_ == nullptr)
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  return !results_.empty();
}

void RolloutWorker::ThrowIfFailed() const {
  std::exception_ptr failure;
  {
    MutexLock lock(mutex_);
    failure = failure_;
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

RolloutWorkerStats RolloutWorker::stats() const {
  MutexLock lock(mutex_);
  RolloutWorkerStats stats = stats_;
  stats.unscored = static_cast<int>(to_score_.size());
  return stats;
}

void RolloutWorker::Fail(std::exception_ptr failure) {
  MutexLock lock(mutex_);
  if (failure_ == nullptr) failure_ = std::move(failure);
  stop_ = true;
  changed_.NotifyAll();
}

void RolloutWorker::Emit(std::vector<WorkerResult> results) {
  if (results.empty()) return;
  MutexLock lock(mutex_);
  stats_.completions += static_cast<int64_t>(results.size());
  for (WorkerResult& result : results) results_.push_back(std::move(result));
  changed_.NotifyAll();
}

void RolloutWorker::EngineLoop() {
  try {
    std::vector<Completion> finished;
    SteadyClock::time_point stats_due{};
    while (!stop_) {
      for (Command command; TakeCommand(command);) Execute(std::move(command));
      FeedEngine();

      finished.clear();
      const bool stepped = engine_.Step(finished);
      if (!finished.empty()) {
        std::deque<Finished> done;
        for (Completion& completion : finished) {
          auto node = in_flight_.extract(completion.id);
          RC_CHECK(!node.empty(), "the engine finished request ", completion.id,
                   ", which it was not given or had finished before");
          done.push_back({std::move(node.mapped()), std::move(completion), engine_.version()});
        }
        MutexLock lock(mutex_);
        for (Finished& item : done) to_score_.push_back(std::move(item));
        changed_.NotifyAll();
      }

      const bool idle = !stepped && finished.empty();
      const auto now = SteadyClock::now();
      if (idle || now >= stats_due) {
        stats_due = now + kStatsInterval;
        const EngineStats stats = engine_.stats();
        MutexLock lock(mutex_);
        stats_.engine = stats;
      }
      if (idle) {
        engine_idle_ = true;
        bool work = false;
        {
          MutexLock lock(mutex_);
          work = !inbox_.empty();
        }
        if (!work && !stop_) engine_.WaitForWork(now + kIdleWait);
        engine_idle_ = false;
      }
    }
  } catch (...) {
    Fail(std::current_exception());
  }
}

bool RolloutWorker::TakeCommand(Command& command) {
  MutexLock lock(mutex_);
  if (inbox_.empty() || stop_) return false;
  command = std::move(inbox_.front());
  inbox_.pop_front();
  return true;
}

std::optional<std::string> RolloutWorker::AbortAhead(uint64_t group_id) const {
  if (stop_) return "the worker ends";
  MutexLock lock(mutex_);
  for (const Command& command : inbox_)
    if (const auto* abort = std::get_if<Abort>(&command);
        abort != nullptr && abort->Means(group_id))
      return abort->message.empty() ? "aborted" : abort->message;
  return std::nullopt;
}

void RolloutWorker::Execute(Command command) {
  if (auto* work = std::get_if<GroupWork>(&command)) {
    StartGroup(std::move(*work));
  } else if (auto* score = std::get_if<ScoreWork>(&command)) {
    StartScore(std::move(*score));
  } else {
    AbortStarted(std::get<Abort>(command));
  }
}

void RolloutWorker::AbortStarted(const Abort& abort) {
  const auto meant = [&](const InFlight& request) {
    return request.group != nullptr && abort.Means(request.group->group_id);
  };
  for (const auto& [id, request] : in_flight_)
    if (meant(request)) engine_.Abort(id, abort.message);
  std::erase_if(backlog_, [&](const Waiting& waiting) {
    if (!meant(waiting.in_flight)) return false;
    Refuse(waiting.in_flight, abort.message.empty() ? "aborted" : abort.message, Outcome::kAborted);
    return true;
  });
}

void RolloutWorker::FeedEngine() {
  if (backlog_.empty()) return;
  // A full queue is no fault of a request: it waits here until the engine has admitted others.
  // Only this thread submits, and what an update sends back into the queue takes no room from it.
  int room = engine_.config().max_queued - engine_.stats().waiting;
  for (; room > 0 && !backlog_.empty(); backlog_.pop_front()) {
    Waiting& next = backlog_.front();
    const uint64_t id = next.request.id;
    std::string why = engine_.Submit(std::move(next.request));
    if (!why.empty()) {
      Refuse(next.in_flight, std::move(why), Outcome::kRefused);
      continue;
    }
    in_flight_.emplace(id, std::move(next.in_flight));
    --room;
  }
}

void RolloutWorker::Refuse(const InFlight& request, std::string why, Outcome outcome) {
  std::vector<WorkerResult> refused;
  if (request.group == nullptr) {
    refused.emplace_back(ScoreResult{.id = request.score_id, .error = std::move(why)});
  } else {
    Trajectory t = Skeleton(*request.group, request.sample_index, request.sampling, options_.rank);
    t.outcome = outcome;
    if (outcome == Outcome::kAborted) t.finish_reason = FinishReason::kAbort;
    t.message = std::move(why);
    t.live_version_at_return = engine_.version();
    refused.emplace_back(std::move(t));
  }
  Emit(std::move(refused));
}

void RolloutWorker::StartGroup(GroupWork work) {
  struct Aborted {
    std::string message;
  };
  std::string refusal;
  Outcome outcome = Outcome::kRefused;
  if (work.prompt.empty() && !work.text.empty()) {
    if (tokenizer_ != nullptr) {
      // A huge text takes seconds, and an abort may come meanwhile.
      try {
        work.prompt = tokenizer_->Encode(work.text, work.add_special_tokens, [&] {
          if (auto message = AbortAhead(work.group_id)) throw Aborted{*std::move(message)};
        });
      } catch (const Aborted& aborted) {
        refusal = aborted.message;
        outcome = Outcome::kAborted;
      } catch (const Error& error) {
        refusal = error.what();
      }
    } else {
      refusal = "the prompt is text and there is no tokenizer";
    }
  }
  if (tokenizer_ == nullptr && !work.sampling.stop_strings.empty())
    refusal = "stop strings need a tokenizer";

  const auto group = std::make_shared<const GroupWork>(std::move(work));
  const uint64_t prompt_hash = PromptIdHash(group->prompt_id);
  for (int32_t sample : group->samples) {
    InFlight in_flight{.group = group, .sample_index = sample, .sampling = group->sampling};
    // So small a temperature is greedy; the record says so.
    float& temperature = in_flight.sampling.temperature;
    if (temperature >= 0.0f && temperature < 1e-6f) temperature = 0.0f;
    in_flight.sampling.seed =
        CompletionSeed(group->sampling.seed, prompt_hash, static_cast<uint64_t>(sample));
    Request request;
    request.id = next_request_id_++;
    request.group_id = group->group_id;
    request.prompt = group->prompt;
    request.sampling = in_flight.sampling;
    request.in_flight = group->in_flight;
    request.want_hidden = group->want_hidden;
    if (tokenizer_ != nullptr && !group->sampling.stop_strings.empty()) {
      in_flight.stop = std::make_shared<StopStrings>(*tokenizer_, group->sampling.stop_strings,
                                                     group->sampling.min_tokens);
      request.stop = [stop = in_flight.stop](std::span<const int32_t> output) {
        return stop->Check(output);
      };
    }
    if (refusal.empty())
      backlog_.push_back({std::move(request), std::move(in_flight)});
    else
      Refuse(in_flight, refusal, outcome);
  }
}

void RolloutWorker::StartScore(ScoreWork work) {
  Request request;
  request.id = next_request_id_++;
  request.prompt = std::move(work.tokens);
  request.score_only = true;
  request.want_logits = work.want_logits;
  const InFlight in_flight{.score_id = work.id};
  const auto vocab = static_cast<size_t>(engine_.model().vocab_size);
  const size_t bytes = work.want_logits ? request.prompt.size() * vocab * sizeof(float) : 0;
  if (bytes > options_.max_result_bytes)
    Refuse(in_flight,
           StrCat("the logits of ", request.prompt.size(), " tokens take ", bytes,
                  " bytes; at most ", options_.max_result_bytes, " are possible, which is ",
                  options_.max_result_bytes / (vocab * sizeof(float)), " tokens"),
           Outcome::kRefused);
  else
    backlog_.push_back({std::move(request), in_flight});
}

void RolloutWorker::SinkLoop() {
  try {
    while (true) {
      std::vector<Finished> batch;
      {
        MutexLock lock(mutex_);
        while (to_score_.empty() && !stop_) changed_.Wait(mutex_);
        if (stop_) return;
        while (!to_score_.empty() && static_cast<int>(batch.size()) < options_.score_batch) {
          batch.push_back(std::move(to_score_.front()));
          to_score_.pop_front();
        }
      }
      Emit(Score(std::move(batch)));
    }
  } catch (...) {
    Fail(std::current_exception());
  }
}

namespace {

/// True where a filter, a penalty or a mask stands between softmax(logits / temperature) and the
/// draw.
bool DrawsFromAnotherDistribution(const SamplingParams& p) {
  return p.top_p < 1.0f || p.top_k > 0 || p.min_p > 0.0f || p.repetition_penalty != 1.0f ||
         p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f || p.min_tokens > 0;
}

}  // namespace

Trajectory RolloutWorker::ToTrajectory(Finished item) const {
  const GroupWork& group = *item.request.group;
  Completion& c = item.completion;
  Trajectory t = Skeleton(group, item.request.sample_index, item.request.sampling, options_.rank);
  t.completion = std::move(c.output);
  t.logprob = std::move(c.logprob);
  t.logprob_raw = std::move(c.logprob_raw);
  t.logprob_filtered = std::move(c.logprob_filtered);
  t.spans = std::move(c.spans);
  t.hidden = std::move(c.hidden);
  t.mixed_kv = c.mixed_kv;
  t.finish_reason = ToFinishReason(c.state);
  t.live_version_at_return = item.version;
  if (tokenizer_ != nullptr) {
    t.text = tokenizer_->Decode(t.completion, /*skip_special_tokens=*/true);
    // A stop string is no part of the answer.
    if (item.request.stop != nullptr) item.request.stop->Cut(t.completion, t.text);
  }
  if (!DrawsFromAnotherDistribution(t.sampling)) t.logprob_filtered.clear();
  if (const size_t bytes = t.hidden.size() * sizeof(t.hidden[0]);
      bytes > options_.max_result_bytes) {
    t.hidden.clear();
    t.outcome = Outcome::kFailed;
    t.message = StrCat("its hidden states take ", bytes, " bytes; at most ",
                       options_.max_result_bytes, " are possible");
  } else if (c.state == CompletionState::kFailed) {
    t.outcome = Outcome::kFailed;
    t.message = std::move(c.message);
  } else if (c.state == CompletionState::kAborted) {
    t.outcome = Outcome::kAborted;
    t.message = c.message.empty() ? "aborted" : std::move(c.message);
  } else if (t.completion.empty()) {
    t.outcome = Outcome::kFailed;
    t.message = "the engine finished it without a token";
  }
  return t;
}

std::vector<WorkerResult> RolloutWorker::Score(std::vector<Finished> batch) {
  std::vector<WorkerResult> results;
  std::vector<ScoreInput> inputs;
  std::vector<size_t> scored;  // result that inputs[i] is about
  for (Finished& item : batch) {
    if (item.request.group == nullptr) {
      Completion& c = item.completion;
      ScoreResult r{.id = item.request.score_id, .version = item.version};
      if (c.state == CompletionState::kScored) {
        r.logprob_raw = std::move(c.logprob_raw);
        r.logits = std::move(c.logits);
        if (!c.spans.empty()) r.version = c.spans.back().version;
      } else {
        r.error = c.message.empty() ? "aborted" : std::move(c.message);
      }
      results.emplace_back(std::move(r));
      continue;
    }
    const std::shared_ptr<const GroupWork> group = item.request.group;
    Trajectory t = ToTrajectory(std::move(item));
    if (t.outcome == Outcome::kCompleted) {
      ScoreInput input;
      input.prompt_id = t.prompt_id;
      input.prompt = group->text;
      if (input.prompt.empty() && tokenizer_ != nullptr)
        input.prompt = tokenizer_->Decode(t.prompt, /*skip_special_tokens=*/false);
      input.completion = t.text;
      input.prompt_ids = t.prompt;
      input.completion_ids = t.completion;
      input.reference = group->reference;
      input.metadata = group->metadata;
      inputs.push_back(std::move(input));
      scored.push_back(results.size());
    }
    results.emplace_back(std::move(t));
  }
  if (inputs.empty()) return results;

  std::vector<rollcast::Score> scores(inputs.size());
  if (scorer_ != nullptr) {
    const auto begin = SteadyClock::now();
    scores = scorer_->ScoreBatch(inputs);
    const std::chrono::duration<double> took = SteadyClock::now() - begin;
    RC_CHECK_EQ(scores.size(), inputs.size(), "from the scorer");
    MutexLock lock(mutex_);
    stats_.score_s += took.count();
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    Trajectory& t = std::get<Trajectory>(results[scored[i]]);
    if (scores[i].error.empty() && std::isfinite(scores[i].reward)) {
      t.reward = scores[i].reward;
      continue;
    }
    t.outcome = Outcome::kScoringFailed;
    t.message = scores[i].error.empty() ? StrCat("the scorer gave the reward ", scores[i].reward)
                                        : std::move(scores[i].error);
  }
  return results;
}

}  // namespace rollcast
