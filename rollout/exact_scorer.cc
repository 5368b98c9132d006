#include "rollout/numeric_answer.h"
#include "rollout/scorers.h"

namespace rollcast {

namespace {

class ExactScorer : public Scorer {
 public:
  std::vector<Score> ScoreBatch(std::span<const ScoreInput> inputs) override {
    std::vector<Score> scores;
    for (const ScoreInput& input : inputs) {
      if (input.reference.empty())
        scores.push_back(Unscored("the prompt has no answer to compare with"));
      else
        scores.push_back(FiniteScore(Trim(input.completion) == Trim(input.reference) ? 1 : 0));
    }
    return scores;
  }
};

}  // namespace

std::unique_ptr<Scorer> MakeExactScorer(const ScorerConfig&) {
  return std::make_unique<ExactScorer>();
}

}  // namespace rollcast
