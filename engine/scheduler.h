// Decides the next batch and applies its result: host logic, no device.
#pragma once

#include <deque>
#include <unordered_map>

#include "engine/prefix_cache.h"
#include "engine/sequence.h"

namespace rollcast {

struct SchedulerLimits {
  int max_running = 0;
  int max_batched_tokens = 0;
  int page_size = 0;
  int num_pages = 0;
  int max_context = 0;
  int max_queued = 0;
  int max_logit_rows = 0;  // rows of a chunk whose logits are wanted
  bool prefix_cache = true;
  int vocab_size = 0;
  int hidden_size = 0;
  std::vector<int32_t> eos_ids;
};

/// Continuous batching with chunked prefill; one prefill a group, its pages shared and copied on
/// write; preemption by recomputation, the latest arrival first. All of it guarded by the engine's
/// scheduler mutex.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  /// Empty when accepted; else why not.
  std::string Submit(Request request);
  void RequestAbort(uint64_t id, std::string message);
  void RequestAbortAll(const std::string& message);

  enum class Verdict {
    kRun,        // `batch` is to be launched
    kNeedsSync,  // read the step in flight first, then plan again
    kNothing,
  };
  /// Plans the next step for weights of `version`. `in_flight`: a launched step has not been
  /// completed yet, so nothing may be preempted.
  Verdict Plan(PolicyVersion version, bool in_flight, ScheduledBatch& batch,
               std::vector<Completion>& finished);
  /// Applies the results of a launched step; `results` has one entry a sample, `hidden` hidden_size
  /// floats a sample, `logits` vocab_size floats a sample (null unless the batch wanted them).
  void Complete(const ScheduledBatch& batch, PolicyVersion version, const SampleResult* results,
                const float* hidden, const float* logits, std::vector<Completion>& finished);

  /// No step may be in flight for these.
  CommitResult ApplyInFlightPolicy(PolicyVersion version, InFlightPolicy policy,
                                   std::vector<Completion>& finished);
  void RetractAll();

  void HoldAdmission(bool hold);
  bool holding() const { return hold_admission_; }
  /// Live sequences that have begun and drain.
  int NumDraining(InFlightPolicy policy) const;
  void AbortDraining(InFlightPolicy policy, const std::string& message);
  void FlushPrefixCache() { cache_.Clear(); }

  /// True when Plan could find something to run.
  bool CanRun() const;
  /// True when FinishAborted would find something.
  bool HasAborts() const;
  /// Ends what is to be aborted; Plan does it, too. What a step in flight draws for them is
  /// dropped.
  void FinishAborted(std::vector<Completion>& finished);
  void FillStats(EngineStats& stats) const;

 private:
  /// With max_queued that have not been admitted yet; those that were preempted are beside them.
  bool QueueIsFull() const;
  PageRef AllocatePage();
  bool CanAllocate(int pages) const;
  Verdict PlanDecodes(PolicyVersion version, bool in_flight, ScheduledBatch& batch);
  void PlanPrefills(PolicyVersion version, ScheduledBatch& batch);
  void PlanChunk(const SequencePtr& sequence, PolicyVersion version, ScheduledBatch& batch);
  bool PlanLogits(PolicyVersion version, ScheduledBatch& batch);
  bool Admit(const SequencePtr& sequence, PolicyVersion version, ScheduledBatch& batch);
  void AttachSiblings(const SequencePtr& leader, int row, ScheduledBatch& batch);
  void Preempt(const SequencePtr& sequence, bool keep_pages_cached);
  void Release(Sequence& sequence);
  void CachePages(const Sequence& sequence, int tokens);
  void Finish(const SequencePtr& sequence, CompletionState state,
              std::vector<Completion>& finished);
  bool IsStopId(const Sequence& sequence, int32_t token) const;

  SchedulerLimits limits_;
  PagePool pool_;
  PrefixCache cache_;  // after pool_: its handles go first
  std::unordered_map<uint64_t, SequencePtr> by_id_;
  std::deque<SequencePtr> waiting_;   // by arrival; preempted ones first
  std::vector<SequencePtr> running_;  // by arrival
  std::unordered_map<uint64_t, SequencePtr>
      group_leaders_;  // groups whose prompt is being prefilled
  std::vector<int> free_slots_;
  uint64_t next_arrival_ = 0;
  bool hold_admission_ = false;
  int cut_off_ = 0;  // sequences that the limit of the drain under way has ended
  bool last_wanted_logits_ = false;
  EngineStats counters_;
};

/// The ids that end a completion: the request's own and, unless ignore_eos, the model's.
std::vector<int32_t> StopIds(const SamplingParams& params, const std::vector<int32_t>& eos_ids);

}  // namespace rollcast
