// All that a trainer needs of one completion.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/policy_version.h"
#include "engine/sampling.h"

namespace rollcast {

/// What became of a submitted completion; each has exactly one.
enum class Outcome : uint8_t {
  kCompleted,      // generated, scored, within the lag
  kAborted,        // cut short by an abort or an update; partial
  kScoringFailed,  // generated; the scorer gave no finite reward in time
  kOverLag,        // generated and scored; older than the lag limit allows, tries used up
  kRefused,        // never generated: the request was not acceptable
  kFailed,         // a rank died or broke; nothing trustworthy came back
};

enum class FinishReason : uint8_t {
  kNone,    // never started
  kStopId,  // drew a stop or end-of-sequence id (it is the last token)
  kStopString,
  kLength,  // max_tokens, or the context is full
  kAbort,
};

/// One more than the highest value: what is read from a file or a message is checked against it.
constexpr int EnumCount(Outcome) { return 6; }
constexpr int EnumCount(FinishReason) { return 5; }
const char* Name(Outcome outcome);
const char* Name(FinishReason reason);
/// Throw Error, naming the choices, when `name` is none of them.
Outcome ParseOutcome(const char* name);
FinishReason ParseFinishReason(const char* name);

struct Trajectory {
  std::string prompt_id;     // as the user gave it
  uint64_t group_id = 0;     // unique in a run; the group's completions share it
  int32_t sample_index = 0;  // in [0, group size)
  int32_t group_size = 1;
  int32_t attempt = 0;                  // 0, or how many earlier tries were over lag
  int32_t rank = 0;                     // that generated it
  SamplingParams sampling;              // with the completion's own seed
  std::vector<int32_t> prompt;          // token ids
  std::vector<int32_t> completion;      // token ids
  std::vector<float> logprob;           // [completion] under softmax(logits / temperature)
  std::vector<float> logprob_raw;       // [completion] under softmax(logits)
  std::vector<float> logprob_filtered;  // [completion] under what was drawn from; empty when no
                                        // filter or penalty is on
  std::vector<PolicySpan> spans;        // cover the completion
  std::vector<float>
      hidden;         // [completion, hidden_size] before the final norm; empty unless asked for
  std::string text;   // decoded completion; empty without a tokenizer
  double reward = 0;  // finite when outcome is kCompleted; NaN where there is none
  Outcome outcome = Outcome::kCompleted;
  FinishReason finish_reason = FinishReason::kNone;
  std::string message;  // why, when outcome is not kCompleted
  PolicyVersion live_version_at_return = 0;
  bool mixed_kv = false;  // continued on KV of an older version (in-flight policy keep)

  PolicyVersion version_first() const {
    return spans.empty() ? live_version_at_return : spans.front().version;
  }
  PolicyVersion version_last() const {
    return spans.empty() ? live_version_at_return : spans.back().version;
  }
};

/// One committed or refused weight update, as the trajectory file, the log and the trainer see it.
struct SyncReport {
  PolicyVersion version = 0;  // live after the update
  bool committed = false;
  std::string error;      // why not, with the rank
  std::string mode;       // "staged" or "in_place"
  std::string transport;  // "mpi", "nccl", "ipc"
  uint64_t digest = 0;    // of the weights after the update
  int64_t bytes = 0;      // a rank
  double total_s = 0, announce_s = 0, transfer_s = 0, verify_s = 0, commit_s = 0;
  double receive_s = 0;  // of transfer_s: the bytes alone, on the slowest rank
  double pause_s = 0;    // longest time that any rank took no step
  int32_t sequences_kept = 0, sequences_recomputed = 0, sequences_aborted = 0;
};

}  // namespace rollcast
