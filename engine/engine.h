// Tokens in, tokens out, on one device, under one policy version at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/model_config.h"
#include "engine/mutex.h"
#include "engine/policy_version.h"
#include "engine/sampling.h"
#include "engine/weight_store.h"
#include "kernels/backend.h"

namespace rollcast {

struct EngineConfig {
  int max_running = 64;          // sequences that decode together (slots)
  int max_batched_tokens = 512;  // rows of one step; a longer prefill is cut into chunks
  int page_size = 16;            // tokens
  int num_pages = 0;             // 0 = from kv_memory_mb
  int kv_memory_mb = 1024;
  int max_context = 0;  // tokens a sequence may have; 0 = what the model allows, within the pages
  int max_queued = 65536;  // waiting sequences; Submit refuses beyond
  bool prefix_cache = true;
  bool capture = true;  // decode by captured graphs; false = eager
  int run_ahead = 1;    // steps launched before the last one's tokens have been read: 0 or 1
};

/// One completion to be made, or (score_only) a token list to be scored.
struct Request {
  uint64_t id = 0;        // unique among live requests
  uint64_t group_id = 0;  // requests of one group have the same prompt; 0 = no group
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  std::optional<InFlightPolicy> in_flight;  // overrides the update's own choice
  bool score_only = false;                  // no token is drawn: log-probabilities of prompt[1..]
  bool want_logits = false;                 // score_only: logits of every prompt position
  bool want_hidden =
      false;  // hidden state (before the final norm) of every row that a token was drawn from
  /// Called on the engine thread with all output tokens after each new one; true = stop here (stop
  /// strings). Must not call the engine.
  std::function<bool(std::span<const int32_t> output)> stop;
  /// Called on the engine thread after each new token, for streaming. Must not call the engine.
  std::function<void(std::span<const int32_t> output)> progress;
};

enum class CompletionState : uint8_t {
  kStopId,
  kStopCallback,
  kLength,
  kAborted,
  kScored,
  kFailed,  // the model gave no finite logits; what there is must not be trained on
};

/// A finished request. Arrays have one entry an output token; for score_only one a prompt token
/// after the first.
struct Completion {
  uint64_t id = 0;
  CompletionState state = CompletionState::kLength;
  std::string message;  // of an abort or a failure
  std::vector<int32_t> prompt;
  std::vector<int32_t> output;
  std::vector<float> logprob, logprob_raw, logprob_filtered;
  std::vector<PolicySpan> spans;
  std::vector<float> hidden;  // [output, hidden_size]
  std::vector<float> logits;  // [prompt, vocab] when asked for
  int cached_tokens = 0;      // prompt tokens taken from the prefix cache or a group sibling
  int preemptions = 0;
  bool mixed_kv = false;  // some KV is older than the last span's version
};

struct EngineStats {
  int running = 0, waiting = 0;
  int pages_total = 0, pages_used = 0, pages_cached = 0;
  int64_t graphs_captured = 0;
  int64_t steps = 0, graph_replays = 0, prefill_tokens = 0, decode_tokens = 0, cached_tokens = 0;
  int64_t preemptions = 0, finished = 0, aborted = 0, updates = 0;
  double step_s = 0;  // total time in Step
  double wait_s = 0;  // of that, waiting for the device
  PolicyVersion version = 0;
  bool torn = false;
  bool holding = false;  // admission is held back for a drain
};

/// What an update did to the sequences in flight.
struct CommitResult {
  int kept = 0, recomputed = 0, aborted = 0;
};

class Engine;

/// Proof that no step is running and none is in flight on the device; needed to write weights.
/// Move-only; the engine steps again when it is destroyed.
class [[nodiscard]] SchedulerLock {
 public:
  SchedulerLock(SchedulerLock&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
  SchedulerLock& operator=(SchedulerLock&&) = delete;
  ~SchedulerLock();

 private:
  friend class Engine;
  explicit SchedulerLock(Engine* engine) : engine_(engine) {}
  Engine* engine_;
};

class Scheduler;
class ModelRunner;

/// Thread rule: Step is called from one thread (the engine thread); everything else from any
/// thread. All state is guarded by the scheduler mutex; nothing else is locked while it is held.
class Engine {
 public:
  /// Allocates KV pages and workspace and captures the decode graphs. Throws Error when memory does
  /// not suffice. `store` must outlive the engine.
  Engine(WeightStore& store, const EngineConfig& config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Empty when accepted; else why not (empty prompt, too long, ids outside the vocabulary, bad
  /// parameters, queue full), and nothing has been taken.
  [[nodiscard]] std::string Submit(Request request) RC_EXCLUDES(mutex_);

  /// Runs one step and appends what has finished to `finished`; paused or torn, it runs none and
  /// ends only what is to be aborted. False when there was nothing to do. Throws what the backend
  /// throws.
  bool Step(std::vector<Completion>& finished) RC_EXCLUDES(mutex_);

  /// Blocks until Step would have something to do, Wake is called, or `deadline`.
  void WaitForWork(std::chrono::steady_clock::time_point deadline) RC_EXCLUDES(mutex_);
  void Wake() RC_EXCLUDES(mutex_);

  /// The request ends as kAborted at the next Step with what it has. Unknown ids are ignored.
  void Abort(uint64_t id, std::string message) RC_EXCLUDES(mutex_);
  void AbortAll(const std::string& message) RC_EXCLUDES(mutex_);

  /// Waits for the running step and for what is in flight on the device, and holds the scheduler.
  SchedulerLock Lock() RC_EXCLUDES(mutex_);

  /// Updates. Under the lock the caller writes weights and then calls exactly one of these.
  /// Commit: `version` goes live, the prefix cache of older versions is dropped, and each sequence
  /// in flight is treated as its request (or else `policy`) says; kDrain counts as kKeep here: use
  /// Drain before locking.
  CommitResult Commit(const SchedulerLock& lock, PolicyVersion version, InFlightPolicy policy);
  /// Live weights are being overwritten or have been left half written: Step refuses until Commit.
  void MarkTorn(const SchedulerLock& lock);
  PolicyVersion version(const SchedulerLock& lock) const;
  WeightStore& weights(const SchedulerLock& lock);

  /// Holds back admission and blocks until the sequences that have begun and whose policy (own, or
  /// else `policy`) is kDrain have finished; those left at `deadline` are aborted at the next Step.
  /// Admission resumes with the next Commit or ResumeAdmission. Needs the engine thread to be
  /// stepping; while it is paused or torn nothing can finish, so nothing is waited for or aborted.
  /// ResumeAdmission ends it early, with nothing aborted.
  void Drain(InFlightPolicy policy, std::chrono::steady_clock::time_point deadline)
      RC_EXCLUDES(mutex_);
  void ResumeAdmission() RC_EXCLUDES(mutex_);

  /// Step does nothing until Resume. A pause is a lease: it ends by itself at `until`.
  void Pause(std::chrono::steady_clock::time_point until) RC_EXCLUDES(mutex_);
  void Resume() RC_EXCLUDES(mutex_);
  /// Every running sequence gives its pages back and is prefilled again when it is next scheduled.
  void RetractAll() RC_EXCLUDES(mutex_);
  /// Drops cached pages that no sequence uses.
  void FlushPrefixCache() RC_EXCLUDES(mutex_);

  PolicyVersion version() const { return version_.load(std::memory_order_acquire); }
  bool torn() const { return torn_.load(std::memory_order_acquire); }
  const ModelConfig& model() const;
  const EngineConfig& config() const { return config_; }
  /// Longest sequence (prompt and output) in tokens.
  int max_context() const;
  EngineStats stats() const RC_EXCLUDES(mutex_);

 private:
  friend class SchedulerLock;
  struct InFlight;  // a launched step whose results have not been read
  void CompleteOldest(std::vector<Completion>& finished) RC_REQUIRES(mutex_);
  bool Paused() const RC_REQUIRES(mutex_);

  EngineConfig config_;
  WeightStore& store_;
  mutable Mutex mutex_;
  CondVar changed_;
  mutable std::atomic<int> waiters_{0};  // threads that want the mutex; Step stands back for them
  std::atomic<PolicyVersion> version_{0};
  std::atomic<bool> torn_{false};
  std::unique_ptr<ModelRunner> runner_ RC_GUARDED_BY(mutex_);
  std::unique_ptr<Scheduler> scheduler_ RC_GUARDED_BY(mutex_);
  std::vector<InFlight> in_flight_ RC_GUARDED_BY(mutex_);  // oldest first; at most run_ahead + 1
  std::vector<Completion> finished_outside_ RC_GUARDED_BY(mutex_);  // given out by the next Step
  std::chrono::steady_clock::time_point paused_until_ RC_GUARDED_BY(mutex_){};
  bool woken_ RC_GUARDED_BY(mutex_) = false;
  double step_s_ RC_GUARDED_BY(mutex_) = 0;
  double wait_s_ RC_GUARDED_BY(mutex_) = 0;
};

}  // namespace rollcast
