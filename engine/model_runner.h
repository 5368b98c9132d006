// Fixed workspace, batch buckets, capture and replay.
#pragma once

#include <memory>
#include <vector>

#include "engine/sequence.h"
#include "engine/transformer.h"

namespace rollcast {

/// The batch sizes that decode graphs are captured for: 1, 2, 4, 8, then steps of 8 to 128 and of
/// 16 beyond; the last one is `max_running`, so there is no batch above it.
std::vector<int> DecodeBuckets(int max_running);

struct RunnerLimits {
  int max_running = 0;
  int max_batched_tokens = 0;
  int max_logit_rows = 0;
  int page_size = 0;
  int num_pages = 0;
  int max_context = 0;
  bool capture = true;
};

/// Results of one launched step; pointers stay valid until the second launch after it.
struct StepResults {
  const SampleResult* samples = nullptr;  // [samples]
  const float* hidden = nullptr;          // [samples, hidden_size]; null unless the batch wants it
  const float* logits = nullptr;          // [samples, vocab]; null unless the batch wants it
};

/// Owns everything a step touches on the device but the weights, all of it but the logits of a
/// scoring request allocated before the first step. Guarded by the scheduler mutex.
class ModelRunner {
 public:
  ModelRunner(WeightStore& store, const RunnerLimits& limits);

  /// Enqueues one step. At most two launched steps may be unread.
  void Launch(const ScheduledBatch& batch);
  /// Blocks until the oldest launched step has finished.
  StepResults Wait();

  int64_t steps() const { return steps_; }
  int64_t graph_replays() const { return graph_replays_; }
  int64_t graphs_captured() const { return graphs_captured_; }

 private:
  /// Where the arrays of a batch of given sizes lie in the input block; the same sizes give the
  /// same addresses.
  struct Inputs {
    RaggedBatch batch;
    size_t ints = 0;
  };
  Inputs Layout(int rows, int segments, int samples, bool padded) const;
  void Fill(const ScheduledBatch& batch, const Inputs& layout, int half);
  void InitSlot(const SlotInit& init);
  void RunStep(const RaggedBatch& batch, float* logits);
  void Capture();

  struct Launched {
    int half = 0;
    int samples = 0;
    bool hidden = false, logits = false;
    std::unique_ptr<Event> done;
  };

  WeightStore& store_;
  Backend& backend_;
  RunnerLimits limits_;
  int max_samples_;
  RopeTables rope_;
  SlotState slots_;
  KvPages kv_;
  Activations activations_;
  std::vector<Buffer> owned_;
  int32_t* input_block_ = nullptr;  // device
  std::vector<int32_t> input_host_;
  int32_t* position_ = nullptr;
  int32_t* row_slot_ = nullptr;
  SampleResult* results_ = nullptr;  // device
  float* hidden_out_ = nullptr;      // device [max_samples, hidden]
  Buffer logits_;                    // device [max_logit_rows, vocab], made on first use
  Buffer logits_host_;
  SampleResult* mailbox_ = nullptr;  // host-visible, two halves
  float* hidden_mailbox_ = nullptr;  // host-visible, two halves
  std::vector<int> buckets_;
  std::vector<Inputs> bucket_inputs_;
  std::vector<std::unique_ptr<CapturedGraph>> graphs_;
  std::vector<Launched> launched_;  // oldest first
  int next_half_ = 0;
  int64_t steps_ = 0;
  int64_t graph_replays_ = 0;
  int64_t graphs_captured_ = 0;
};

}  // namespace rollcast
