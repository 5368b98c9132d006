// (prompt, completion) to a reward.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace rollcast {

/// What a scorer sees of one completion. Views stay valid for the call.
struct ScoreInput {
  std::string prompt_id;
  std::string prompt;      // text, or empty without a tokenizer
  std::string completion;  // text without special tokens, or empty without a tokenizer
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> completion_ids;
  std::string reference;  // the prompt's "answer" field as text; empty when there is none
  std::string metadata;   // the prompt's whole JSON row, for command and http scorers
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

struct ScorerConfig {
  std::string kind = "length";  // exact, regex, length, numeric, command, http
  std::string pattern;     // regex: what the completion must contain; group 1, if any, is compared
                           // with the answer
  std::string command;     // command: a shell command line, started once; JSON lines in and out
  std::string url;         // http: where a batch is POSTed
  double deadline_s = 30;  // for one batch, tries included
  int max_tries = 3;
  int target_length = 0;  // length: tokens that earn 1; the reward falls off linearly
};

/// Throws Error when `config` names no scorer or lacks what it needs.
std::unique_ptr<Scorer> MakeScorer(const ScorerConfig& config);

}  // namespace rollcast
