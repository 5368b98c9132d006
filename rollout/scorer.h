// (prompt, completion) to a reward.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace rollcast {

/// What a scorer sees of one completion.
struct ScoreInput {
  std::string prompt_id;
  std::string prompt;      // text, or empty without a tokenizer
  std::string completion;  // text without special tokens, or empty without a tokenizer
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> completion_ids;
  std::string reference;  // the prompt's "answer" field as text; empty when there is none
  std::string metadata;   // JSON that the prompt's row has under "metadata", or empty
};

/// `reward` is finite when `error` is empty; otherwise there is no reward and `error` says why.
struct Score {
  double reward = 0;
  std::string error;
};

/// Scores batches. Called from one thread at a time; never throws for a completion that cannot be
/// scored.
class Scorer {
 public:
  virtual ~Scorer() = default;
  /// One Score an input, in order. Returns within the scorer's deadline.
  virtual std::vector<Score> ScoreBatch(std::span<const ScoreInput> inputs) = 0;
};

/// Built-in kinds:
///   exact    1 when the completion is the answer, surrounding white space aside
///   numeric  1 when the completion's final number (\boxed{x}, "#### x", or the last one) is that
///   of
///            the answer
///   regex    1 when `pattern` is found in the completion; where it has a group 1 and the prompt an
///            answer, the group must be the answer too, and a match without it earns
///            `format_reward`
///   format   as regex, but the pattern must match the whole completion, surrounding white space
///            aside
///   length   1 at `target_length` tokens, falling off linearly to 0 at none and at twice as many
///   command  asks a child process: {"id", "prompt", "completion", "prompt_ids", "completion_ids",
///            "answer", "metadata"} in, {"id", "reward"} or {"id", "error"} out, one a line, in any
///            order; any other output is a breach that leaves what is unanswered unscored at once
///   http     POSTs {"inputs": [...]}, objects as above; takes {"scores": [...]}, each a number or
///            {"error": ...}
struct ScorerConfig {
  std::string kind = "length";
  std::string pattern = "";  // regex, format: PCRE2 syntax
  double format_reward = 0;  // regex, format: of a match whose group 1 is not the answer
  std::string command = "";  // command: a shell command line, started once
  std::string url = "";      // http: where a batch is POSTed
  double deadline_s = 30;    // command, http, regex, format: for one batch, tries included
  int max_tries = 3;         // command, http: of one batch
  int target_length = 32;    // length: in tokens
};

/// Whether scorers of this kind judge the text of a completion, so that there must be a tokenizer.
bool ScorerReadsText(const std::string& kind);

/// Throws Error when `config` names no scorer or lacks what it needs.
std::unique_ptr<Scorer> MakeScorer(const ScorerConfig& config);

}  // namespace rollcast
