// The makers behind MakeScorer, one a file, and what the scorers share.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rollout/scorer.h"

namespace rollcast {

std::unique_ptr<Scorer> MakeExactScorer(const ScorerConfig& config);
std::unique_ptr<Scorer> MakeNumericScorer(const ScorerConfig& config);
/// Also makes "format".
std::unique_ptr<Scorer> MakeRegexScorer(const ScorerConfig& config);
std::unique_ptr<Scorer> MakeLengthScorer(const ScorerConfig& config);
std::unique_ptr<Scorer> MakeCommandScorer(const ScorerConfig& config);
std::unique_ptr<Scorer> MakeHttpScorer(const ScorerConfig& config);

/// A Score without a reward.
Score Unscored(std::string error);
/// A Score of `reward`, or Unscored when it is not finite.
Score FiniteScore(double reward);

/// Most tries are lost to something that is starting or restarting: 50 ms, 100 ms, 200 ms ... up to
/// 2 s before try 1, 2, 3 ... (try 0 is the first one).
std::chrono::milliseconds BackoffBefore(int attempt);

using ScoringClock = std::chrono::steady_clock;
ScoringClock::time_point ScoringDeadline(const ScorerConfig& config);

/// The JSON object that command and http scorers send for one completion; `id` may be empty.
std::string InputToJson(const ScoreInput& input, std::string_view id);

/// One line that a command scorer has written. `breach` is empty, or else says what the line is: no
/// reply to any request.
struct CommandReply {
  uint64_t id = 0;  // of the request
  Score score;
  std::string breach;
};
CommandReply ReadCommandReply(std::string_view line);

/// What the body of an http scorer's reply says of `count` completions, in their order. Throws
/// Error when it is no reply to as many.
std::vector<Score> ReadHttpReply(std::string_view body, size_t count);

/// `reply` with the bare words NaN, Infinity and -Infinity, which several JSON writers emit and
/// JSON does not have, turned into null, so that one such reward does not take its neighbours
/// along.
std::string NonFiniteToNull(std::string_view reply);

/// For error messages: at most `limit` bytes, in valid UTF-8, control characters as '?'.
std::string Excerpt(std::string_view text, size_t limit = 200);

}  // namespace rollcast
