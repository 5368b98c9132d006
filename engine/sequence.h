// One request in progress, as the scheduler sees it.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "engine/kv_cache.h"

namespace rollcast {

/// Host state of one request. "Launched" counts what steps handed to the device will have done;
/// results of the last one may not have been read yet. Guarded by the scheduler mutex.
struct Sequence {
  enum class Phase : uint8_t {
    kWaiting,  // no slot, no pages
    kPrefill,  // has a slot; KV of known tokens is being written
    kDecode,   // each step draws one token
    kFinished,
  };

  Request request;
  uint64_t arrival = 0;
  Phase phase = Phase::kWaiting;
  bool abort_requested = false;
  bool cut_off = false;   // by the limit of a drain, which is why its abort is requested
  Completion completion;  // what has been read so far

  int slot = -1;
  PageTable pages;
  int computed = 0;         // tokens whose KV launched steps have written
  int launched_output = 0;  // output tokens that launched steps draw; >= completion.output.size()
  PolicyVersion kv_version = 0;  // of all KV, while !kv_mixed
  bool kv_mixed = false;

  int prompt_length() const { return static_cast<int>(request.prompt.size()); }
  int output_length() const { return static_cast<int>(completion.output.size()); }
  /// Tokens that the host knows.
  int known() const { return prompt_length() + output_length(); }
  int32_t token(int i) const {
    return i < prompt_length() ? request.prompt[i] : completion.output[i - prompt_length()];
  }
  std::vector<int32_t> Tokens() const {
    std::vector<int32_t> tokens = request.prompt;
    tokens.insert(tokens.end(), completion.output.begin(), completion.output.end());
    return tokens;
  }
  bool live() const { return phase != Phase::kFinished; }
  /// A token has been drawn, or some of the prompt has been prefilled.
  bool begun() const { return launched_output > 0 || phase != Phase::kWaiting; }
};

using SequencePtr = std::shared_ptr<Sequence>;

/// Of a chunk that samples: what to do with its rows.
struct ScheduledSegment {
  SequencePtr sequence;
  int slot = -1;
  int begin = 0;  // position of the first row
  int rows = 0;
  bool decode = false;    // one row whose token the device knows
  int32_t new_page = -1;  // decode: goes into the page table at the row's position
};

struct ScheduledSample {
  SequencePtr sequence;
  int slot = -1;
  int row = 0;          // of the batch
  int32_t forced = -1;  // >= 0: score this token
};

/// A slot that is given to a sequence: its constants, page table and history are uploaded before
/// the step.
struct SlotInit {
  SequencePtr sequence;
  int slot = -1;
};

/// What one step does, decided by the scheduler and carried out by the model runner.
struct ScheduledBatch {
  std::vector<SlotInit> slot_inits;
  std::vector<int32_t> copy_from, copy_to;  // pages, copied before the forward pass
  std::vector<ScheduledSegment> segments;
  std::vector<ScheduledSample> samples;
  int num_rows = 0;
  bool want_logits = false;  // then the batch is one score_only chunk alone

  bool empty() const { return segments.empty(); }
  /// One row a segment and one sample a row, in the same order.
  bool pure_decode() const {
    if (samples.size() != segments.size()) return false;
    for (const ScheduledSegment& s : segments)
      if (!s.decode) return false;
    return true;
  }
};

}  // namespace rollcast
