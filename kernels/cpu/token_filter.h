// What the distribution drawn from is, given the logits of a sample.
//
// In this order:
//  1. Penalties. Of every token of prompt and output: logit / repetition where the logit is
//     positive, logit * repetition elsewhere. Then, of every token that is c > 0 times in the
//     output: logit - frequency * c - presence.
//  2. While the sequence (the token to be drawn not counted) has fewer than min_length tokens, stop
//     ids are out, unless there are no other ids.
//  3. Temperature: x = logit * (1 / temperature).
//  4. Ids are ranked by x, highest first, equal x by lower id. top_k: the first k stay.
//  5. top_p: with p renormalised over what is left, an id stays if the sum of those before it is
//     below top_p. The first always stays.
//  6. min_p: an id stays if its p is at least min_p times that of the first.
// Sums over ranked ids are in double precision, in order of rank.
//
// The draw is the id with the highest x + Gumbel(noise of (seed, position of the token, id)), the
// lower id of equal ones. Greedy: the highest adjusted logit, the lower id of equal ones.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace rollcast::cpu {

/// True where step 1 or 2 changes anything for a token drawn after `length` tokens.
bool NeedsAdjustment(const SlotSampling& sampling, int length);

/// Steps 1 and 2, in place. `history` has `length` tokens; `counts` is [vocab] zeros, and is so
/// again on return. Throws CheckFailure on a token outside the vocabulary.
void AdjustLogits(const SlotSampling& sampling, const int32_t* history, int length, float* logits,
                  int vocab, std::vector<int32_t>& counts);

/// True where step 4, 5 or 6 can take out an id.
bool HasFilter(const SlotSampling& sampling, int vocab);

struct RankedId {
  float x;
  int32_t id;
};

/// Steps 4 to 6 over x = logits[i] * scale: the ids that stay, in order of rank. `max` is the
/// highest x, `log_sum` the log of the sum of exp(x - max) over all ids. Empty when no logit is
/// above -infinity.
void FilterIds(const SlotSampling& sampling, const float* logits, int vocab, float scale, float max,
               double log_sum, std::vector<RankedId>& kept);

}  // namespace rollcast::cpu
