#include "kernels/cpu/token_filter.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/scalar_math.h"

namespace rollcast::cpu {

bool NeedsAdjustment(const SlotSampling& sampling, int length) {
  return sampling.HasPenalty() || (sampling.num_stop_ids > 0 && length < sampling.min_length);
}

void AdjustLogits(const SlotSampling& sampling, const int32_t* history, int length, float* logits,
                  int vocab, std::vector<int32_t>& counts) {
  if (sampling.HasPenalty()) {
    // Bit 0: seen; above: occurrences in the output.
    for (int i = 0; i < length; ++i)
      RC_CHECK(history[i] >= 0 && history[i] < vocab, "token ", history[i], " at ", i,
               " of the history, vocabulary ", vocab);
    const int prompt = std::min(length, sampling.prompt_length);
    for (int i = 0; i < prompt; ++i) counts[history[i]] |= 1;
    for (int i = prompt; i < length; ++i) counts[history[i]] += 2;
    for (int i = 0; i < length; ++i) {
      const int32_t count = counts[history[i]] >> 1;
      if (counts[history[i]] == 0) continue;
      counts[history[i]] = 0;
      float& logit = logits[history[i]];
      if (sampling.repetition_penalty != 1.0f)
        logit =
            logit > 0 ? logit / sampling.repetition_penalty : logit * sampling.repetition_penalty;
      if (count > 0)
        logit -= sampling.frequency_penalty * static_cast<float>(count) + sampling.presence_penalty;
    }
  }
  if (length < sampling.min_length && sampling.num_stop_ids < vocab) {
    for (int i = 0; i < sampling.num_stop_ids; ++i)
      if (sampling.stop_ids[i] >= 0 && sampling.stop_ids[i] < vocab)
        logits[sampling.stop_ids[i]] = -std::numeric_limits<float>::infinity();
  }
}

bool HasFilter(const SlotSampling& sampling, int vocab) {
  return (sampling.top_k > 0 && sampling.top_k < vocab) || sampling.top_p < 1.0f ||
         sampling.min_p > 0.0f;
}

void FilterIds(const SlotSampling& sampling, const float* logits, int vocab, float scale, float max,
               double log_sum, std::vector<RankedId>& kept) {
  const bool by_count = sampling.top_k > 0 && sampling.top_k < vocab;
  const size_t count = by_count ? static_cast<size_t>(sampling.top_k) : vocab;
  const float lowest = std::numeric_limits<float>::lowest();
  // What stays is a prefix of the ranked ids, mostly a short one: rank those near the top, and more
  // of them until the prefix is certain to lie within.
  for (float width = 4;; width *= 2) {
    const bool all = width > 64;
    const float floor = all ? lowest : std::max(lowest, max - width);
    kept.clear();
    for (int i = 0; i < vocab; ++i) {
      const float x = logits[i] * scale;
      if (x >= floor) kept.push_back({x, i});
    }
    std::sort(kept.begin(), kept.end(), [](const RankedId& a, const RankedId& b) {
      return a.x > b.x || (a.x == b.x && a.id < b.id);
    });
    bool certain = all;
    if (kept.size() >= count) {
      kept.resize(count);
      certain = true;
    }
    const bool counted = !by_count || certain;  // top_p needs all that top_k leaves
    if (sampling.top_p < 1.0f && counted) {
      double total = 0;
      if (by_count)
        for (const RankedId& c : kept) total += Exp(static_cast<double>(c.x) - max);
      else
        total = Exp(log_sum);
      double before = 0;
      size_t n = 0;
      while (n < kept.size() && (n == 0 || before < sampling.top_p * total))
        before += Exp(static_cast<double>(kept[n++].x) - max);
      if (n < kept.size() || before >= sampling.top_p * total) certain = true;
      kept.resize(n);
    }
    if (sampling.min_p > 0.0f) {
      size_t n = kept.empty() ? 0 : 1;
      while (n < kept.size() && Exp(static_cast<double>(kept[n].x) - max) >= sampling.min_p) ++n;
      if (n < kept.size() || Exp(-static_cast<double>(width)) < sampling.min_p) {
        // top_p can only have taken more than min_p here if it was evaluated.
        if (counted || sampling.top_p >= 1.0f) certain = true;
      }
      kept.resize(n);
    }
    if (certain) return;
  }
}

}  // namespace rollcast::cpu
