// What one rank is asked to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/policy_version.h"
#include "engine/sampling.h"

namespace rollcast {

/// Completions of one prompt; a rank holds a group whole before it is returned.
inline constexpr int32_t kMaxGroupSize = 4096;

/// A group of completions of one prompt, or those of its samples that are still to be made.
struct GroupWork {
  uint64_t group_id = 0;  // unique in a run
  std::string prompt_id;  // as the user gave it
  std::vector<int32_t>
      prompt;  // token ids; empty: `text` is encoded by the rank that does the work
  std::string text;
  bool add_special_tokens = false;  // when `text` is encoded
  std::string reference;            // what the scorer compares with
  std::string metadata;             // JSON for the scorer, or empty
  int32_t group_size = 1;
  std::vector<int32_t> samples;             // sample indices to make, each in [0, group_size)
  int32_t attempt = 0;                      // 0, or how many earlier tries were lost or over lag
  SamplingParams sampling;                  // its seed is the run's, see CompletionSeed
  std::optional<InFlightPolicy> in_flight;  // overrides what an update says
  bool want_hidden = false;
};

/// A token list to be scored, teacher-forced.
struct ScoreWork {
  uint64_t id = 0;
  std::vector<int32_t> tokens;  // at least 2
  bool want_logits = false;
};

struct ScoreResult {
  uint64_t id = 0;
  std::string error{};               // empty, or why there is no result
  std::vector<float> logprob_raw{};  // [tokens - 1] of tokens[1..], at temperature 1
  std::vector<float> logits{};       // [tokens, vocab] when asked for
  PolicyVersion version = 0;         // that scored it
};

/// FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv): the prompt id as CompletionSeed
/// takes it. Part of the replay contract: it never changes.
constexpr uint64_t PromptIdHash(std::string_view prompt_id) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : prompt_id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace rollcast
