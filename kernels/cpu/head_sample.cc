// HeadSample: final norm, head product, log-sum-exp, draw, log-probabilities.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/scalar_math.h"
#include "kernels/cpu/token_filter.h"

namespace rollcast::cpu {

namespace {

constexpr int kGroup = 64;  // samples whose logits are held at once

/// All ids of a distribution over x = logit * scale.
struct Distribution {
  float max;       // of x
  double log_sum;  // log of the sum of exp(x - max)
  int32_t argmax;  // -1 = there is no finite logit

  float LogProb(float x) const {
    return static_cast<float>((static_cast<double>(x) - max) - log_sum);
  }
};

/// Folds slices left to right.
Distribution FoldSlices(const SliceStats* slices, int count) {
  int top = 0;
  for (int i = 1; i < count; ++i)
    if (slices[i].max > slices[top].max) top = i;
  const float max = slices[top].max;
  double sum = 0;
  for (int i = 0; i < count; ++i)
    sum += slices[i].sum * Exp(static_cast<double>(slices[i].max) - max);
  const int32_t argmax = slices[top].argmax;
  return {max, Log(sum), argmax < 0 ? -1 : top * kVocabSlice + argmax};
}

struct Sample {
  int index;     // of the batch
  int row;       // of the logits held
  int position;  // of the token to be drawn
  int forced;    // -1 = draw
  const SlotSampling* sampling;
  float scale;  // 1 / temperature; 1 where greedy
  bool greedy;
  bool filtered;
  const float* logits = nullptr;
  const float* adjusted = nullptr;  // after penalties and masks; `logits` where there are none

  bool draws() const { return forced < 0 && !greedy; }
};

struct Drawn {
  float score;
  int32_t id;  // -1 = none
};

bool Better(const Drawn& a, const Drawn& b) {
  return a.id >= 0 && (b.id < 0 || a.score > b.score || (a.score == b.score && a.id < b.id));
}

/// What one slice of the vocabulary gives for one sample.
struct SampleSlice {
  SliceStats raw, tempered, adjusted;
  Drawn drawn;
};

SampleSlice ComputeSlice(const IsaKernels& isa, const Sample& sample, int slice, int vocab) {
  const int first = slice * kVocabSlice, count = std::min(kVocabSlice, vocab - first);
  SampleSlice out;
  out.raw = isa.slice_stats(sample.logits + first, count, 1.0f);
  out.tempered =
      sample.scale == 1.0f ? out.raw : isa.slice_stats(sample.logits + first, count, sample.scale);
  out.adjusted = sample.adjusted == sample.logits
                     ? out.tempered
                     : isa.slice_stats(sample.adjusted + first, count, sample.scale);
  out.drawn = {std::numeric_limits<float>::lowest(), -1};
  if (sample.draws() && !sample.filtered && out.adjusted.argmax >= 0) {
    // Starting from the likeliest id, few others need their noise.
    const uint32_t position = static_cast<uint32_t>(sample.position);
    const int32_t likely = first + out.adjusted.argmax;
    DrawArgs args = {sample.adjusted + first,
                     first,
                     count,
                     sample.scale,
                     sample.sampling->seed,
                     position,
                     out.adjusted.max + Gumbel(NoiseWord(sample.sampling->seed, position, likely)),
                     likely};
    isa.draw(args);
    out.drawn = {args.best, args.best_id};
  }
  return out;
}

SampleResult Finish(const Sample& sample, const SampleSlice* slices, int num_slices, int vocab) {
  std::vector<SliceStats> stats(num_slices);
  const auto fold = [&](SliceStats SampleSlice::*member) {
    for (int i = 0; i < num_slices; ++i) stats[i] = slices[i].*member;
    return FoldSlices(stats.data(), num_slices);
  };
  const Distribution raw = fold(&SampleSlice::raw);
  const Distribution tempered = fold(&SampleSlice::tempered);
  const Distribution adjusted = fold(&SampleSlice::adjusted);

  std::vector<RankedId> kept;
  if (sample.filtered)
    FilterIds(*sample.sampling, sample.adjusted, vocab, sample.scale, adjusted.max,
              adjusted.log_sum, kept);

  int32_t token = sample.forced;
  if (token < 0) {
    // Without a finite logit there is nothing to draw; its log-probability is then NaN.
    Drawn best = {0, -1};
    if (sample.greedy) {
      best.id = adjusted.argmax;
    } else if (sample.filtered) {
      for (const RankedId& c : kept) {
        if (best.id >= 0 && c.x + kMaxGumbel < best.score) break;
        const Drawn drawn = {c.x + Gumbel(NoiseWord(sample.sampling->seed,
                                                    static_cast<uint32_t>(sample.position), c.id)),
                             c.id};
        if (Better(drawn, best)) best = drawn;
      }
    } else {
      for (int i = 0; i < num_slices; ++i)
        if (Better(slices[i].drawn, best)) best = slices[i].drawn;
    }
    token = std::max(best.id, 0);
  }

  SampleResult result = {};
  result.token = token;
  result.valid = 1;
  result.logprob_raw = raw.LogProb(sample.logits[token]);
  if (sample.greedy) {
    result.logprob = result.logprob_filtered = result.logprob_raw;
    return result;
  }
  result.logprob = tempered.LogProb(sample.logits[token] * sample.scale);
  const float x = sample.adjusted[token] * sample.scale;
  if (!sample.filtered) {
    result.logprob_filtered = adjusted.LogProb(x);
    return result;
  }
  double sum = 0;
  bool inside = false;
  for (const RankedId& c : kept) {
    sum += Exp(static_cast<double>(c.x) - adjusted.max);
    inside |= c.id == token;
  }
  result.logprob_filtered =
      inside ? static_cast<float>((static_cast<double>(x) - adjusted.max) - Log(sum))
             : -std::numeric_limits<float>::infinity();
  return result;
}

/// The samples of the batch that are valid; marks the others in `result`.
std::vector<Sample> ValidSamples(const HeadSampleArgs& args, int vocab) {
  const RaggedBatch& batch = *args.batch;
  std::vector<Sample> samples;
  for (int i = 0; i < batch.num_samples; ++i) {
    args.result[i] = {};
    const int row = batch.sample_row[i], slot = batch.sample_slot[i],
              forced = batch.sample_forced[i];
    if (row < 0) continue;
    RC_CHECK_LT(row, batch.num_rows, "sample ", i);
    if (batch.position[row] < 0) continue;
    RC_CHECK(slot >= 0 && slot < args.slots->num_slots, "slot ", slot, " of sample ", i);
    RC_CHECK_LT(forced, vocab, "forced token of sample ", i);
    if (forced < 0 && args.slots->stopped[slot]) continue;
    const SlotSampling& sampling = args.slots->sampling[slot];
    Sample sample;
    sample.index = i;
    sample.row = row;
    sample.position = batch.position[row] + 1;
    sample.forced = forced;
    sample.sampling = &sampling;
    sample.greedy = !(sampling.temperature > 0);
    sample.scale = sample.greedy ? 1.0f : 1.0f / sampling.temperature;
    sample.filtered = !sample.greedy && HasFilter(sampling, vocab);
    samples.push_back(sample);
  }
  return samples;
}

/// Logits of the rows, [rows.size(), vocab], in context.wide.
float* HeadProduct(CpuContext& context, const HeadSampleArgs& args,
                   const std::vector<int32_t>& rows) {
  const int vocab = static_cast<int>(args.head.shape[0]), hidden = args.hidden_size;
  const int count = static_cast<int>(rows.size());
  const float* packed =
      PackRows(context, args.hidden, hidden, hidden, rows.data(), count, &args.norm, args.rms_eps);
  float* logits = context.wide.Get(static_cast<size_t>(count) * vocab);
  const int columns = PartColumns(vocab, count);
  for (Scratch& tile : context.tiles) tile.Get(columns);
  context.pool.ParallelFor((vocab + columns - 1) / columns, [&](int part, int thread) {
    const int begin = part * columns, end = std::min(vocab, begin + columns);
    Product(context, packed, 0, count, hidden, args.head, begin, end, logits + begin, vocab);
    if (args.head_bias.empty()) return;
    float* bias = context.tiles[thread].Get(0);
    LoadBias(context, args.head_bias, begin, end, bias);
    for (int r = 0; r < count; ++r) {
      float* out = logits + static_cast<int64_t>(r) * vocab + begin;
      for (int j = 0; j < end - begin; ++j) out[j] += bias[j];
    }
  });
  return logits;
}

void RunGroup(CpuContext& context, const HeadSampleArgs& args, Sample* samples, int count) {
  const int vocab = static_cast<int>(args.head.shape[0]);
  std::vector<int32_t> rows;
  std::vector<int> place(count);
  for (int i = 0; i < count; ++i) {
    const auto found = std::find(rows.begin(), rows.end(), samples[i].row);
    place[i] = static_cast<int>(found - rows.begin());
    if (found == rows.end()) rows.push_back(samples[i].row);
  }
  const float* logits = HeadProduct(context, args, rows);

  int num_adjusted = 0;
  const auto adjusts = [](const Sample& s) { return NeedsAdjustment(*s.sampling, s.position); };
  for (int i = 0; i < count; ++i) num_adjusted += adjusts(samples[i]);
  float* adjusted = context.partial.Get(static_cast<size_t>(num_adjusted) * vocab);
  if (num_adjusted > 0) context.counts.resize(vocab, 0);
  for (int i = 0; i < count; ++i) {
    Sample& s = samples[i];
    s.logits = s.adjusted = logits + static_cast<int64_t>(place[i]) * vocab;
    if (adjusts(s)) {
      std::memcpy(adjusted, s.logits, vocab * sizeof(float));
      AdjustLogits(*s.sampling,
                   args.slots->history + static_cast<int64_t>(args.batch->sample_slot[s.index]) *
                                             args.slots->max_context,
                   s.position, adjusted, vocab, context.counts);
      s.adjusted = adjusted;
      adjusted += vocab;
    }
    if (args.logits != nullptr)
      std::memcpy(args.logits + static_cast<int64_t>(s.index) * vocab, s.logits,
                  vocab * sizeof(float));
    if (args.hidden_out != nullptr)
      std::memcpy(args.hidden_out + static_cast<int64_t>(s.index) * args.hidden_size,
                  args.hidden + static_cast<int64_t>(s.row) * args.hidden_size,
                  args.hidden_size * sizeof(float));
  }

  const int num_slices = (vocab + kVocabSlice - 1) / kVocabSlice;
  std::vector<SampleSlice> slices(static_cast<size_t>(count) * num_slices);
  context.pool.ParallelFor(count * num_slices, [&](int part, int) {
    slices[part] = ComputeSlice(context.isa, samples[part / num_slices], part % num_slices, vocab);
  });
  context.pool.ParallelFor(count, [&](int i, int) {
    args.result[samples[i].index] =
        Finish(samples[i], slices.data() + static_cast<size_t>(i) * num_slices, num_slices, vocab);
  });
}

}  // namespace

void HeadSample(CpuContext& context, const HeadSampleArgs& args) {
  const int64_t vocab = args.head.shape[0];
  RC_CHECK(args.head.shape == Shape({vocab, args.hidden_size}), ToString(args.head.shape));
  RC_CHECK_EQ(args.norm.shape.NumElements(), args.hidden_size);
  if (!args.head_bias.empty()) RC_CHECK_EQ(args.head_bias.shape.NumElements(), vocab);
  RC_CHECK_LE(vocab, static_cast<int64_t>(ThreadPool::kMaxParts / kGroup) * kVocabSlice);
  std::vector<Sample> samples = ValidSamples(args, static_cast<int>(vocab));
  for (size_t i = 0; i < samples.size(); i += kGroup)
    RunGroup(context, args, samples.data() + i,
             static_cast<int>(std::min<size_t>(kGroup, samples.size() - i)));
}

}  // namespace rollcast::cpu
