#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "kernels/check.h"
#include "rollout/numeric_answer.h"
#include "rollout/scorers.h"

namespace rollcast {

namespace {

// Bounds one match that backtracks without end to well under a second.
constexpr uint32_t kMatchLimit = 1'000'000;

struct PcreFree {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};

std::string PcreMessage(int code) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(code, text, sizeof(text)) < 0 ? StrCat("PCRE2 error ", code)
                                                               : reinterpret_cast<char*>(text);
}

class RegexScorer : public Scorer {
 public:
  RegexScorer(const ScorerConfig& config, bool whole) : config_(config), whole_(whole) {
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF;
    if (whole) options |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(config.pattern.data()),
                              config.pattern.size(), options, &error, &offset, nullptr));
    if (!code_)
      throw Error(StrCat("scorer pattern \"", config.pattern, "\" is not a regular expression: ",
                         PcreMessage(error), " at offset ", offset));
    data_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    context_.reset(pcre2_match_context_create(nullptr));
    RC_CHECK(data_ && context_);
    pcre2_set_match_limit(context_.get(), kMatchLimit);
  }

  std::vector<Score> ScoreBatch(std::span<const ScoreInput> inputs) override {
    const auto deadline = ScoringDeadline(config_);
    std::vector<Score> scores;
    for (const ScoreInput& input : inputs)
      scores.push_back(ScoringClock::now() < deadline
                           ? ScoreOne(input)
                           : Unscored(StrCat("no time left for this completion after ",
                                             config_.deadline_s, " s")));
    return scores;
  }

 private:
  Score ScoreOne(const ScoreInput& input) {
    const std::string_view text =
        whole_ ? Trim(input.completion) : std::string_view(input.completion);
    // A view of nothing may have no address, which PCRE2 refuses.
    const char* subject = text.empty() ? "" : text.data();
    const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(subject), text.size(),
                                  0, 0, data_.get(), context_.get());
    if (count == PCRE2_ERROR_NOMATCH) return FiniteScore(0);
    if (count < 0) return Unscored(StrCat("scorer pattern: ", PcreMessage(count)));
    if (input.reference.empty() || pcre2_get_ovector_count(data_.get()) < 2) return FiniteScore(1);
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data_.get());
    if (count < 2 || bounds[2] == PCRE2_UNSET) return FiniteScore(config_.format_reward);
    const std::string_view group = text.substr(bounds[2], bounds[3] - bounds[2]);
    return FiniteScore(SameAnswer(group, input.reference) ? 1 : config_.format_reward);
  }

  const ScorerConfig config_;
  const bool whole_;
  std::unique_ptr<pcre2_code, PcreFree> code_;
  std::unique_ptr<pcre2_match_data, PcreFree> data_;
  std::unique_ptr<pcre2_match_context, PcreFree> context_;
};

}  // namespace

std::unique_ptr<Scorer> MakeRegexScorer(const ScorerConfig& config) {
  if (config.pattern.empty())
    throw Error(StrCat("the ", config.kind, " scorer needs a pattern, and there is none"));
  if (!(config.format_reward >= 0 && config.format_reward <= 1))
    throw Error(StrCat("scorer format_reward is ", config.format_reward, "; it must be in [0, 1]"));
  return std::make_unique<RegexScorer>(config, config.kind == "format");
}

}  // namespace rollcast
