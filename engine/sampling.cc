#include "engine/sampling.h"

#include <cmath>

#include "kernels/backend.h"
#include "kernels/check.h"

namespace rollcast {

namespace {

uint64_t SplitMix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

std::string Validate(const SamplingParams& p, int32_t vocab_size) {
  // Written so that a NaN is out of every range.
  if (!(p.max_tokens >= 1))
    return StrCat("max_tokens is ", p.max_tokens, "; it must be at least 1");
  if (!(p.min_tokens >= 0 && p.min_tokens <= p.max_tokens))
    return StrCat("min_tokens is ", p.min_tokens, "; it must be between 0 and max_tokens (",
                  p.max_tokens, ")");
  if (!(p.temperature >= 0 && std::isfinite(p.temperature)))
    return StrCat("temperature is ", p.temperature, "; it must be finite and at least 0");
  if (!(p.top_p > 0 && p.top_p <= 1)) return StrCat("top_p is ", p.top_p, "; it must be in (0, 1]");
  if (!(p.top_k >= -1))
    return StrCat("top_k is ", p.top_k, "; it must be at least 1, or -1 for off");
  if (!(p.min_p >= 0 && p.min_p <= 1))
    return StrCat("min_p is ", p.min_p, "; it must be in [0, 1]");
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 2))
    return StrCat("repetition_penalty is ", p.repetition_penalty, "; it must be in (0, 2]");
  if (!(p.frequency_penalty >= -2 && p.frequency_penalty <= 2))
    return StrCat("frequency_penalty is ", p.frequency_penalty, "; it must be in [-2, 2]");
  if (!(p.presence_penalty >= -2 && p.presence_penalty <= 2))
    return StrCat("presence_penalty is ", p.presence_penalty, "; it must be in [-2, 2]");
  if (p.stop_ids.size() > kMaxStopIds)
    return StrCat("stop_ids has ", p.stop_ids.size(), " ids; at most ", kMaxStopIds,
                  " are possible");
  for (const int32_t id : p.stop_ids) {
    if (id >= 0 && (vocab_size <= 0 || id < vocab_size)) continue;
    return StrCat("stop_ids has ", id, "; an id must be ",
                  vocab_size > 0 ? StrCat("in [0, ", vocab_size, "), the vocabulary")
                                 : std::string("at least 0"));
  }
  for (const std::string& text : p.stop_strings)
    if (text.empty())
      return "stop_strings has an empty text, which every completion contains; leave it out";
  return "";
}

uint64_t CompletionSeed(uint64_t run_seed, uint64_t prompt_id, uint64_t sample_index) {
  return SplitMix64(SplitMix64(SplitMix64(run_seed) ^ prompt_id) ^ sample_index);
}

}  // namespace rollcast
