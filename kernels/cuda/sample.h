// From logits to a token and its log-probabilities.
#pragma once

#include <cuda_runtime.h>

#include "kernels/backend.h"

namespace rollcast::cuda {

constexpr int kVocabSlice = 4096;  // ids whose statistics one CTA makes
constexpr int kSlowCtas = 64;      // samples with penalties, masks or filters that run together

/// What a CTA finds out about one slice of the vocabulary for one sample.
struct SliceStats {
  float max;       // of the logits
  float sum;       // of exp(logit - max)
  float tempered;  // of exp((logit - max) / temperature)
  int argmax;
  float best;  // highest logit / temperature + Gumbel noise
  int best_id;
};

struct SampleScratch {
  SliceStats* slices = nullptr;  // [samples of a block, slices]
  float* adjusted = nullptr;     // [kSlowCtas, vocab]
  int32_t* counts = nullptr;     // [kSlowCtas, vocab] zeros between launches
};

/// Samples [first, first + count) of the batch; `logits` is [count, vocab]. The definition of the
/// draw is that of kernels/cpu/token_filter.h, with cumulative probabilities in fixed point.
void LaunchSample(const HeadSampleArgs& args, const float* logits, int vocab, int first, int count,
                  const SampleScratch& scratch, bool pdl, cudaStream_t stream);

}  // namespace rollcast::cuda
