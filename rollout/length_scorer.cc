#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "rollout/scorers.h"

namespace rollcast {

namespace {

class LengthScorer : public Scorer {
 public:
  explicit LengthScorer(int target) : target_(target) {}

  std::vector<Score> ScoreBatch(std::span<const ScoreInput> inputs) override {
    std::vector<Score> scores;
    for (const ScoreInput& input : inputs) {
      const double length = static_cast<double>(input.completion_ids.size());
      scores.push_back(FiniteScore(std::max(0.0, 1 - std::abs(length - target_) / target_)));
    }
    return scores;
  }

 private:
  const double target_;  // tokens
};

}  // namespace

std::unique_ptr<Scorer> MakeLengthScorer(const ScorerConfig& config) {
  if (config.target_length < 1)
    throw Error(StrCat("scorer target_length is ", config.target_length,
                       "; the length scorer needs at least 1 token"));
  return std::make_unique<LengthScorer>(config.target_length);
}

}  // namespace rollcast
