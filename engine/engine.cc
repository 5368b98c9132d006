#include "engine/engine.h"

#include <algorithm>
#include <thread>

#include "engine/model_runner.h"
#include "engine/scheduler.h"

namespace rollcast {

using std::chrono::steady_clock;

namespace {

// Rows of one chunk of a request that wants logits; they are float32 [rows, vocab] on device and
// host.
constexpr int kMaxLogitRows = 64;

void RequireAtLeast(const char* key, int value, int least) {
  if (value < least)
    throw Error(StrCat("engine.", key, " is ", value, "; it must be at least ", least));
}

EngineConfig Resolve(const EngineConfig& given, const ModelConfig& model, DType kv_dtype) {
  EngineConfig config = given;
  RequireAtLeast("max_running", config.max_running, 1);
  RequireAtLeast("page_size", config.page_size, 1);
  RequireAtLeast("max_queued", config.max_queued, 1);
  RequireAtLeast("max_context", config.max_context, 0);
  RequireAtLeast("num_pages", config.num_pages, 0);
  if (config.max_batched_tokens < config.max_running)
    throw Error(StrCat("engine.max_batched_tokens is ", config.max_batched_tokens,
                       "; it must be at least engine.max_running (", config.max_running,
                       "), since a decode step has one row a running sequence"));
  if (config.run_ahead < 0 || config.run_ahead > 1)
    throw Error(StrCat("engine.run_ahead is ", config.run_ahead, "; it must be 0 or 1"));
  if (config.num_pages == 0) {
    const int64_t page_bytes = 2ll * model.num_layers * config.page_size * model.kv_rows() *
                               static_cast<int64_t>(SizeOf(kv_dtype));
    config.num_pages = static_cast<int>(
        std::min<int64_t>((int64_t{config.kv_memory_mb} << 20) / page_bytes, int64_t{1} << 30));
    if (config.num_pages < 1)
      throw Error(StrCat("engine.kv_memory_mb is ", config.kv_memory_mb,
                         "; one KV page of this model takes ", page_bytes, " bytes"));
  }
  const int64_t fits = int64_t{config.num_pages} * config.page_size;
  const int longest = static_cast<int>(std::min<int64_t>(fits, model.max_context));
  if (config.max_context > model.max_context)
    throw Error(StrCat("engine.max_context is ", config.max_context, "; the model allows ",
                       model.max_context));
  if (config.max_context > fits)
    throw Error(StrCat("engine.max_context is ", config.max_context, "; the KV pages hold ", fits,
                       " tokens: raise engine.kv_memory_mb or engine.num_pages"));
  if (config.max_context == 0) config.max_context = longest;
  return config;
}

}  // namespace

struct Engine::InFlight {
  ScheduledBatch batch;
  PolicyVersion version = 0;
};

SchedulerLock::~SchedulerLock() {
  if (engine_ == nullptr) return;
  engine_->mutex_.AssertHeld();
  engine_->changed_.NotifyAll();
  engine_->mutex_.Unlock();
}

Engine::Engine(WeightStore& store, const EngineConfig& config)
    : config_(Resolve(config, store.config(), store.backend().kv_dtype())), store_(store) {
  const ModelConfig& model = store.config();
  runner_ = std::make_unique<ModelRunner>(
      store, RunnerLimits{.max_running = config_.max_running,
                          .max_batched_tokens = config_.max_batched_tokens,
                          .max_logit_rows = kMaxLogitRows,
                          .page_size = config_.page_size,
                          .num_pages = config_.num_pages,
                          .max_context = config_.max_context,
                          .capture = config_.capture});
  scheduler_ = std::make_unique<Scheduler>(
      SchedulerLimits{.max_running = config_.max_running,
                      .max_batched_tokens = config_.max_batched_tokens,
                      .page_size = config_.page_size,
                      .num_pages = config_.num_pages,
                      .max_context = config_.max_context,
                      .max_queued = config_.max_queued,
                      .max_logit_rows = std::min(kMaxLogitRows, config_.max_batched_tokens),
                      .prefix_cache = config_.prefix_cache,
                      .vocab_size = model.vocab_size,
                      .hidden_size = model.hidden_size,
                      .eos_ids = model.eos_ids});
}

Engine::~Engine() = default;

std::string Engine::Submit(Request request) {
  WaitingLock lock(mutex_, waiters_);
  std::string reason = scheduler_->Submit(std::move(request));
  if (reason.empty()) changed_.NotifyAll();
  return reason;
}

bool Engine::Paused() const { return torn() || steady_clock::now() < paused_until_; }

bool Engine::Step(std::vector<Completion>& finished) {
  while (waiters_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  MutexLock lock(mutex_);
  const auto start = steady_clock::now();
  const size_t before = finished.size();
  std::move(finished_outside_.begin(), finished_outside_.end(), std::back_inserter(finished));
  finished_outside_.clear();
  bool launched = false;
  if (Paused()) {
    scheduler_->FinishAborted(finished);
  } else {
    const PolicyVersion live = version();
    ScheduledBatch batch;
    Scheduler::Verdict verdict = scheduler_->Plan(live, !in_flight_.empty(), batch, finished);
    if (verdict == Scheduler::Verdict::kNeedsSync) {
      while (!in_flight_.empty()) CompleteOldest(finished);
      batch = ScheduledBatch();
      verdict = scheduler_->Plan(live, false, batch, finished);
    }
    if (verdict == Scheduler::Verdict::kRun) {
      runner_->Launch(batch);
      in_flight_.push_back({std::move(batch), live});
      launched = true;
    }
  }
  const size_t unread = launched ? config_.run_ahead : 0;
  const bool read = in_flight_.size() > unread;
  while (in_flight_.size() > unread) CompleteOldest(finished);
  step_s_ += std::chrono::duration<double>(steady_clock::now() - start).count();
  if (finished.size() > before) changed_.NotifyAll();
  return launched || read || finished.size() > before;
}

void Engine::CompleteOldest(std::vector<Completion>& finished) {
  InFlight step = std::move(in_flight_.front());
  in_flight_.erase(in_flight_.begin());
  const auto start = steady_clock::now();
  const StepResults results = runner_->Wait();
  wait_s_ += std::chrono::duration<double>(steady_clock::now() - start).count();
  scheduler_->Complete(step.batch, step.version, results.samples, results.hidden, results.logits,
                       finished);
}

void Engine::WaitForWork(steady_clock::time_point deadline) {
  WaitingLock lock(mutex_, waiters_);
  while (!woken_) {
    const bool ready = !in_flight_.empty() || !finished_outside_.empty() ||
                       scheduler_->HasAborts() || (!Paused() && scheduler_->CanRun());
    const auto now = steady_clock::now();
    if (ready || now >= deadline) break;
    // A pause is a lease: its end is work too.
    changed_.WaitUntil(mutex_, paused_until_ > now ? std::min(deadline, paused_until_) : deadline);
  }
  woken_ = false;
}

void Engine::Wake() {
  WaitingLock lock(mutex_, waiters_);
  woken_ = true;
  changed_.NotifyAll();
}

void Engine::Abort(uint64_t id, std::string message) {
  WaitingLock lock(mutex_, waiters_);
  scheduler_->RequestAbort(id, std::move(message));
  changed_.NotifyAll();
}

void Engine::AbortAll(const std::string& message) {
  WaitingLock lock(mutex_, waiters_);
  scheduler_->RequestAbortAll(message);
  changed_.NotifyAll();
}

SchedulerLock Engine::Lock() RC_NO_THREAD_SAFETY_ANALYSIS {
  waiters_.fetch_add(1, std::memory_order_acq_rel);
  mutex_.Lock();
  waiters_.fetch_sub(1, std::memory_order_acq_rel);
  SchedulerLock lock(this);
  while (!in_flight_.empty()) CompleteOldest(finished_outside_);
  return lock;
}

CommitResult Engine::Commit(const SchedulerLock& lock, PolicyVersion version,
                            InFlightPolicy policy) {
  RC_CHECK(lock.engine_ == this);
  mutex_.AssertHeld();
  RC_CHECK_GT(version, this->version());
  const CommitResult result = scheduler_->ApplyInFlightPolicy(version, policy, finished_outside_);
  version_.store(version, std::memory_order_release);
  torn_.store(false, std::memory_order_release);
  return result;
}

void Engine::MarkTorn(const SchedulerLock& lock) {
  RC_CHECK(lock.engine_ == this);
  torn_.store(true, std::memory_order_release);
}

PolicyVersion Engine::version(const SchedulerLock& lock) const {
  RC_CHECK(lock.engine_ == this);
  return version();
}

WeightStore& Engine::weights(const SchedulerLock& lock) {
  RC_CHECK(lock.engine_ == this);
  return store_;
}

void Engine::Drain(InFlightPolicy policy, steady_clock::time_point deadline) {
  WaitingLock lock(mutex_, waiters_);
  scheduler_->HoldAdmission(true);
  while (scheduler_->holding() && !Paused() && scheduler_->NumDraining(policy) > 0) {
    if (steady_clock::now() >= deadline) {
      scheduler_->AbortDraining(policy, "not finished within the drain limit of a weight update");
      break;
    }
    changed_.WaitUntil(mutex_, deadline);
  }
}

void Engine::ResumeAdmission() {
  WaitingLock lock(mutex_, waiters_);
  scheduler_->HoldAdmission(false);
  changed_.NotifyAll();
}

void Engine::Pause(steady_clock::time_point until) {
  WaitingLock lock(mutex_, waiters_);
  while (!in_flight_.empty()) CompleteOldest(finished_outside_);
  paused_until_ = until;
  changed_.NotifyAll();
}

void Engine::Resume() {
  WaitingLock lock(mutex_, waiters_);
  paused_until_ = {};
  changed_.NotifyAll();
}

void Engine::RetractAll() {
  WaitingLock lock(mutex_, waiters_);
  while (!in_flight_.empty()) CompleteOldest(finished_outside_);
  scheduler_->RetractAll();
}

void Engine::FlushPrefixCache() {
  WaitingLock lock(mutex_, waiters_);
  scheduler_->FlushPrefixCache();
}

const ModelConfig& Engine::model() const { return store_.config(); }

int Engine::max_context() const { return config_.max_context; }

EngineStats Engine::stats() const {
  WaitingLock lock(mutex_, waiters_);
  EngineStats stats;
  scheduler_->FillStats(stats);
  stats.graphs_captured = runner_->graphs_captured();
  stats.graph_replays = runner_->graph_replays();
  stats.steps = runner_->steps();
  stats.step_s = step_s_;
  stats.wait_s = wait_s_;
  stats.version = version();
  stats.torn = torn();
  return stats;
}

}  // namespace rollcast
