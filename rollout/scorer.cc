#include "rollout/scorer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/check.h"
#include "rollout/scorers.h"

namespace rollcast {

namespace {

struct Kind {
  const char* name;
  std::unique_ptr<Scorer> (*make)(const ScorerConfig&);
  bool reads_text;
};
// A command or an http server may do with the ids, which it is given, too.
constexpr Kind kKinds[] = {
    {"exact", MakeExactScorer, true},    {"numeric", MakeNumericScorer, true},
    {"regex", MakeRegexScorer, true},    {"format", MakeRegexScorer, true},
    {"length", MakeLengthScorer, false}, {"command", MakeCommandScorer, false},
    {"http", MakeHttpScorer, false},
};

}  // namespace

bool ScorerReadsText(const std::string& kind) {
  return std::any_of(std::begin(kKinds), std::end(kKinds),
                     [&](const Kind& k) { return kind == k.name && k.reads_text; });
}

std::unique_ptr<Scorer> MakeScorer(const ScorerConfig& config) {
  if (!(config.deadline_s > 0 && config.deadline_s <= 86400))
    throw Error(
        StrCat("scorer deadline_s is ", config.deadline_s, "; it must be in (0, 86400] seconds"));
  if (config.max_tries < 1)
    throw Error(StrCat("scorer max_tries is ", config.max_tries, "; it must be at least 1"));
  std::string kinds;
  for (const Kind& kind : kKinds) {
    if (config.kind == kind.name) return kind.make(config);
    kinds += StrCat(kinds.empty() ? "" : ", ", kind.name);
  }
  throw Error(StrCat("scorer kind is \"", config.kind, "\"; it must be one of ", kinds));
}

Score Unscored(std::string error) { return {0, std::move(error)}; }

Score FiniteScore(double reward) {
  if (!std::isfinite(reward)) return Unscored(StrCat("the reward is ", reward, ", not finite"));
  // Files and trainers hold rewards as float32.
  if (std::abs(reward) > std::numeric_limits<float>::max())
    return Unscored(StrCat("the reward is ", reward, ", beyond float32 (3.4e+38 at most)"));
  return {reward, ""};
}

std::chrono::milliseconds BackoffBefore(int attempt) {
  return std::chrono::milliseconds(attempt < 1 ? 0
                                               : std::min(2000, 50 << std::min(attempt - 1, 6)));
}

ScoringClock::time_point ScoringDeadline(const ScorerConfig& config) {
  return ScoringClock::now() + std::chrono::duration_cast<ScoringClock::duration>(
                                   std::chrono::duration<double>(config.deadline_s));
}

std::string InputToJson(const ScoreInput& input, std::string_view id) {
  nlohmann::json object = {{"prompt_id", input.prompt_id},
                           {"prompt", input.prompt},
                           {"completion", input.completion},
                           {"prompt_ids", input.prompt_ids},
                           {"completion_ids", input.completion_ids}};
  if (!id.empty()) object["id"] = id;
  object["answer"] = input.reference.empty() ? nlohmann::json() : nlohmann::json(input.reference);
  auto metadata = nlohmann::json::parse(input.metadata, nullptr, /*allow_exceptions=*/false);
  object["metadata"] = metadata.is_discarded() ? nlohmann::json() : std::move(metadata);
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string NonFiniteToNull(std::string_view reply) {
  constexpr std::string_view kWords[] = {"-Infinity", "Infinity", "NaN"};
  std::string result;
  result.reserve(reply.size());
  bool in_string = false;
  for (size_t i = 0; i < reply.size();) {
    if (in_string && reply[i] == '\\') {
      result += reply.substr(i, 2);
      i += 2;
      continue;
    }
    if (reply[i] == '"') in_string = !in_string;
    const auto* word = std::find_if(std::begin(kWords), std::end(kWords), [&](auto w) {
      return !in_string && reply.substr(i, w.size()) == w;
    });
    if (word != std::end(kWords)) {
      result += "null";
      i += word->size();
    } else {
      result += reply[i++];
    }
  }
  return result;
}

std::string Excerpt(std::string_view text, size_t limit) {
  std::string result(text.substr(0, limit));
  for (char& c : result)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  // There and back, which replaces what is no UTF-8.
  const std::string quoted =
      nlohmann::json(result).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(quoted).get<std::string>() + (text.size() > limit ? "..." : "");
}

}  // namespace rollcast
