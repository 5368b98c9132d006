#include "kernels/check.h"
#include "rollout/numeric_answer.h"
#include "rollout/scorers.h"

namespace rollcast {

namespace {

class NumericScorer : public Scorer {
 public:
  std::vector<Score> ScoreBatch(std::span<const ScoreInput> inputs) override {
    std::vector<Score> scores;
    for (const ScoreInput& input : inputs) scores.push_back(ScoreOne(input));
    return scores;
  }

 private:
  static Score ScoreOne(const ScoreInput& input) {
    if (input.reference.empty()) return Unscored("the prompt has no answer to compare with");
    const auto expected = FinalNumber(input.reference);
    if (!expected)
      return Unscored(
          StrCat("the prompt's answer \"", Excerpt(input.reference), "\" has no number"));
    const auto found = FinalNumber(input.completion);
    return FiniteScore(found && SameNumber(*found, *expected) ? 1 : 0);
  }
};

}  // namespace

std::unique_ptr<Scorer> MakeNumericScorer(const ScorerConfig&) {
  return std::make_unique<NumericScorer>();
}

}  // namespace rollcast
