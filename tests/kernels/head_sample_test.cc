// HeadSample: logits, log-probabilities, filters and the draw, against double-precision references.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tests/kernels/op_fixture.h"

namespace rollcast {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Logits that can be chosen freely: hidden size 1, norm weight 0 and a head bias.
class ChosenLogits {
 public:
  ChosenLogits(Backend& backend, const std::vector<float>& logits, int num_slots,
               int max_context = 64)
      : slots(backend, num_slots, max_context, 16),
        backend_(backend),
        vocab_(static_cast<int>(logits.size())),
        norm_(backend, {0.0f}, {1}, DType::kF32),
        head_(backend, std::vector<float>(vocab_, 0.0f), {vocab_, 1}, DType::kF32),
        bias_(backend, logits, {vocab_}, DType::kF32),
        hidden_(backend, 1, 1.0f) {}

  /// Sample i belongs to slot i % num_slots; all share one row at `position`.
  std::vector<SampleResult> Run(int position, const std::vector<int32_t>& forced) {
    TestBatch batch(backend_, {position}, {0});
    std::vector<int32_t> slot;
    for (size_t i = 0; i < forced.size(); ++i)
      slot.push_back(static_cast<int32_t>(i) % slots.state.num_slots);
    batch.SetSamples(backend_, std::vector<int32_t>(forced.size(), 0), slot, forced);
    const DeviceArray<SampleResult> results(backend_, forced.size(),
                                            SampleResult{-5, -5, -5, kPoison, kPoison, kPoison});
    HeadSampleArgs args = {};
    args.batch = &batch.batch;
    args.slots = &slots.state;
    args.hidden = hidden_.data();
    args.hidden_size = 1;
    args.norm = norm_.view;
    args.rms_eps = 1e-5f;
    args.head = head_.view;
    args.head_bias = bias_.view;
    args.result = results.data();
    backend_.HeadSample(args);
    return results.Get();
  }
  /// As the backend holds them.
  const std::vector<float>& logits() const { return bias_.exact; }
  SampleResult Draw(const SlotSampling& sampling, int position) {
    slots.sampling().Set(std::vector<SlotSampling>(slots.state.num_slots, sampling));
    return Run(position, {-1})[0];
  }

  TestSlots slots;

 private:
  Backend& backend_;
  int vocab_;
  Weight norm_, head_, bias_;
  DeviceArray<float> hidden_;
};

/// The distribution drawn from, as token_filter.h defines it: log-probabilities, -infinity for ids
/// that are out.
std::vector<double> FilterReference(const std::vector<float>& logits, const SlotSampling& s,
                                    const std::vector<int32_t>& history) {
  const int vocab = static_cast<int>(logits.size()), length = static_cast<int>(history.size());
  std::vector<double> z(logits.begin(), logits.end());
  std::map<int, int> output;
  for (int i = s.prompt_length; i < length; ++i) ++output[history[i]];
  for (int id : std::set<int>(history.begin(), history.end()))
    z[id] = z[id] > 0 ? z[id] / s.repetition_penalty : z[id] * s.repetition_penalty;
  for (const auto& [id, count] : output)
    z[id] -= s.frequency_penalty * static_cast<double>(count) + s.presence_penalty;
  if (length < s.min_length)
    for (int i = 0; i < s.num_stop_ids; ++i) z[s.stop_ids[i]] = -kInfinity;
  for (double& x : z) x /= s.temperature;
  std::vector<int> rank(vocab);
  std::iota(rank.begin(), rank.end(), 0);
  std::stable_sort(rank.begin(), rank.end(), [&](int a, int b) { return z[a] > z[b]; });
  size_t n = s.top_k > 0 ? std::min(s.top_k, vocab) : vocab;
  const auto p = [&](int i) { return std::exp(z[rank[i]] - z[rank[0]]); };
  double total = 0, before = 0;
  for (size_t i = 0; i < n; ++i) total += p(i);
  if (s.top_p < 1) {
    size_t kept = 0;
    while (kept < n && (kept == 0 || before < s.top_p * total)) before += p(kept++);
    n = kept;
  }
  while (n > 1 && p(n - 1) < s.min_p) --n;
  total = 0;
  for (size_t i = 0; i < n; ++i) total += p(i);
  std::vector<double> out(vocab, -kInfinity);
  for (size_t i = 0; i < n; ++i) out[rank[i]] = z[rank[i]] - z[rank[0]] - std::log(total);
  return out;
}

double LogProbReference(const std::vector<float>& logits, int id, double temperature) {
  double max = -kInfinity, sum = 0;
  for (float x : logits) max = std::max(max, x / temperature);
  for (float x : logits) sum += std::exp(x / temperature - max);
  return logits[id] / temperature - max - std::log(sum);
}

using HeadTest = OpTest;

TEST_P(HeadTest, LogitsAndLogProbabilities) {
  for (const auto& [hidden, vocab, dtype] : {std::tuple{100, 301, DType::kBF16},
                                             {17, 9001, DType::kF16},
                                             {33, 5, DType::kF32},
                                             {136, 8999, DType::kBF16}}) {
    const int rows = 5;
    const std::vector<float> x = random.Normal(rows * hidden, 2);
    const Weight norm(*backend, random.Normal(hidden, 0.3f, 1), {hidden}, dtype);
    const Weight head(*backend, random.Normal(vocab * hidden, 0.4f), {vocab, hidden}, dtype);
    const DeviceArray<float> x_device(*backend, x);
    TestSlots slots(*backend, 3, 64, 16);
    std::vector<SlotSampling> sampling(3, DefaultSampling());
    sampling[1].temperature = 0.6f;
    sampling[2].temperature = 0;
    slots.sampling().Set(sampling);
    TestBatch batch(*backend, {3, -1, 8, 9, 10}, {0, -1, 1, 1, 2});
    // Forced, drawn, greedy, padding, inactive, and two samples of one row.
    const std::vector<int32_t> sample_row = {2, 0, 4, -1, 1, 0}, sample_slot = {1, 0, 2, 0, 0, 1};
    batch.SetSamples(*backend, sample_row, sample_slot, {3, -1, -1, -1, -1, 4});
    const DeviceArray<SampleResult> results(*backend, 6, SampleResult{});
    const DeviceArray<float> logits(*backend, 6 * vocab, kPoison),
        hidden_out(*backend, 6 * hidden, kPoison);
    HeadSampleArgs args = {};
    args.batch = &batch.batch;
    args.slots = &slots.state;
    args.hidden = x_device.data();
    args.hidden_size = hidden;
    args.norm = norm.view;
    args.rms_eps = 1e-5f;
    args.head = head.view;
    args.result = results.data();
    args.logits = logits.data();
    args.hidden_out = hidden_out.data();
    backend->HeadSample(args);

    // Of the invalid samples, 3 and 4, logits and hidden states mean nothing.
    const std::vector<float> got = logits.Get(), got_hidden = hidden_out.Get();
    const auto part = [](const std::vector<float>& all, int i, int size) {
      return std::vector<float>(all.begin() + i * size, all.begin() + (i + 1) * size);
    };
    for (int i : {0, 1, 2, 5}) {
      std::vector<double> expected(vocab);
      const float* row = &x[sample_row[i] * hidden];
      double squares = 0;
      for (int k = 0; k < hidden; ++k) squares += static_cast<double>(row[k]) * row[k];
      const double factor = 1 / std::sqrt(squares / hidden + 1e-5);
      for (int j = 0; j < vocab; ++j)
        for (int k = 0; k < hidden; ++k)
          expected[j] += row[k] * factor * norm.exact[k] * head.exact[j * hidden + k];
      EXPECT_TRUE(Matches(*backend, part(got, i, vocab), expected, 3e-5, Precision::kRounded));
      EXPECT_TRUE(SameBits(part(got_hidden, i, hidden), std::vector<float>(row, row + hidden)));
    }

    const std::vector<SampleResult> out = results.Get();
    for (int i : {3, 4}) EXPECT_EQ(out[i].valid, 0);
    EXPECT_EQ(out[0].token, 3);
    EXPECT_EQ(out[5].token, 4);
    for (int i : {0, 1, 2, 5}) {
      const std::vector<float> mine = part(got, i, vocab);
      EXPECT_EQ(out[i].valid, 1);
      ASSERT_GE(out[i].token, 0);
      ASSERT_LT(out[i].token, vocab);
      const double temperature = sampling[sample_slot[i]].temperature;
      const double raw = LogProbReference(mine, out[i].token, 1);
      const double tolerance = exact() ? 3e-6 : 1e-5;
      EXPECT_NEAR(out[i].logprob_raw, raw, tolerance);
      EXPECT_NEAR(out[i].logprob,
                  temperature > 0 ? LogProbReference(mine, out[i].token, temperature) : raw,
                  tolerance);
      EXPECT_EQ(out[i].logprob_filtered, out[i].logprob);
      if (i == 2) {
        EXPECT_EQ(out[i].token, std::max_element(mine.begin(), mine.end()) - mine.begin());
      }
    }
  }
}

TEST_P(HeadTest, FiltersAndPenalties) {
  const int vocab = 4300;
  std::vector<SlotSampling> cases(13, DefaultSampling());
  cases[0].top_k = 1;
  cases[1].top_k = 50;
  cases[2].top_p = 0.5f;
  cases[3].top_p = 0.999f;
  cases[4].min_p = 0.2f;
  cases[5].min_p = 1e-6f;
  cases[6].top_k = 700;
  cases[6].top_p = 0.95f;
  cases[6].min_p = 0.001f;
  cases[7].repetition_penalty = 1.5f;
  cases[7].frequency_penalty = 0.7f;
  cases[7].presence_penalty = -0.4f;
  cases[8].repetition_penalty = 0.8f;
  cases[8].top_k = 10;
  cases[9].num_stop_ids = 2;
  cases[9].stop_ids[0] = 7;
  cases[9].stop_ids[1] = 5;
  cases[9].min_length = 13;  // of 12: masked
  cases[10] = cases[9];
  cases[10].min_length = 12;  // not masked
  cases[11].top_k = 100000;   // more than there are
  cases[12].temperature = 0.01f;
  cases[12].top_p = 0.9f;
  const std::vector<int32_t> history = {5, 4, 4, 4299, 5, 7, 7, 7, 4096, 4095, 1, 2};
  for (float spread : {0.5f, 4.0f}) {
    std::vector<float> logits = random.Normal(vocab, spread);
    logits[5] = logits[7] = 20;
    logits[8] = logits[9] = logits[10] = logits[4096];  // ties
    ChosenLogits model(*backend, logits, 1);
    logits = model.logits();
    std::vector<int32_t> all(model.slots.state.max_context, 0);
    std::copy(history.begin(), history.end(), all.begin());
    model.slots.history().Set(all);
    for (size_t c = 0; c < cases.size(); ++c) {
      SCOPED_TRACE(StrCat("case ", c, " spread ", spread));
      cases[c].prompt_length = 6;
      if (cases[c].temperature == 1) cases[c].temperature = c % 2 ? 0.8f : 1.0f;
      model.slots.sampling().Set({cases[c]});
      const std::vector<double> expected = FilterReference(logits, cases[c], history);
      // Every 41st rank, the first ranks, and the tokens of the history.
      std::vector<int32_t> forced = history;
      std::vector<int32_t> rank(vocab);
      std::iota(rank.begin(), rank.end(), 0);
      std::sort(rank.begin(), rank.end(), [&](int a, int b) { return expected[a] > expected[b]; });
      for (int i = 0; i < vocab; i += i < 12 ? 1 : 41) forced.push_back(rank[i]);
      const std::vector<SampleResult> results =
          model.Run(static_cast<int>(history.size()) - 1, forced);
      std::map<int32_t, float> filtered;
      for (size_t i = 0; i < forced.size(); ++i) {
        const int32_t id = forced[i];
        ASSERT_EQ(results[i].token, id);
        ASSERT_NEAR(results[i].logprob_raw, LogProbReference(logits, id, 1), 1e-5);
        filtered[id] = results[i].logprob_filtered;
        if (expected[id] == -kInfinity) {
          ASSERT_EQ(filtered[id], -kInfinity) << id;
        } else {
          ASSERT_NEAR(filtered[id], expected[id], 1e-4) << id;
        }
      }
      SlotSampling drawing = cases[c];
      for (int i = 0; i < 10; ++i) {
        drawing.seed = 1000 + i;
        const SampleResult drawn = model.Draw(drawing, static_cast<int>(history.size()) - 1);
        ASSERT_NE(expected[drawn.token], -kInfinity);
        if (filtered.count(drawn.token)) {
          ASSERT_EQ(drawn.logprob_filtered, filtered[drawn.token]);
        }
      }
    }
  }
}

TEST_P(HeadTest, GreedyTakesTheLowestOfEqualIds) {
  std::vector<float> logits(9000, -2.0f);
  logits[8500] = logits[4500] = logits[4499] = 3.0f;
  ChosenLogits model(*backend, logits, 1);
  SlotSampling greedy = DefaultSampling();
  greedy.temperature = 0;
  greedy.top_k = 5;
  const SampleResult result = model.Draw(greedy, 3);
  EXPECT_EQ(result.token, 4499);
  EXPECT_EQ(result.logprob, result.logprob_raw);
  EXPECT_EQ(result.logprob_filtered, result.logprob_raw);
  greedy.num_stop_ids = 1;
  greedy.stop_ids[0] = 4499;
  greedy.min_length = 5;
  EXPECT_EQ(model.Draw(greedy, 3).token, 4500);
  EXPECT_EQ(model.Draw(greedy, 4).token, 4499);
}

TEST_P(HeadTest, StoppedSlotsDrawNothing) {
  ChosenLogits model(*backend, {1, 2, 3}, 2);
  model.slots.stopped().Set({0, 1});
  const auto results = model.Run(3, {-1, -1, 2, 2});
  EXPECT_EQ(results[0].valid, 1);
  EXPECT_EQ(results[1].valid, 0);
  EXPECT_EQ(results[2].valid, 1);
  EXPECT_EQ(results[3].valid, 1);  // scoring does not depend on the slot's state
}

TEST_P(HeadTest, AllIdsMaskedOrNotANumber) {
  SlotSampling sampling = DefaultSampling();
  sampling.num_stop_ids = 2;
  sampling.stop_ids[0] = 0;
  sampling.stop_ids[1] = 1;
  sampling.min_length = 100;
  ChosenLogits two(*backend, {1, 2}, 1);
  EXPECT_EQ(two.Draw(sampling, 1).valid, 1);
  // All, and as many as have no other id beside them in their slice of the vocabulary.
  std::vector<float> last_slice(4097, 0.0f);
  last_slice[4096] = kPoison;
  for (const auto& logits : {std::vector<float>(5000, kPoison), last_slice}) {
    ChosenLogits broken(*backend, logits, 1);
    for (float top_p : {1.0f, 0.9f}) {
      SlotSampling s = DefaultSampling();
      s.top_p = top_p;
      const SampleResult result = broken.Draw(s, 1);
      if (std::isnan(logits[0]))
        EXPECT_EQ(result.token, 0);
      else
        EXPECT_NE(result.token, 4096);
      EXPECT_TRUE(std::isnan(result.logprob));
      EXPECT_TRUE(std::isnan(result.logprob_raw));
    }
  }
  std::vector<float> one_nan(5000, 0.0f);
  one_nan[4200] = kPoison;
  const SampleResult result = ChosenLogits(*backend, one_nan, 1).Draw(DefaultSampling(), 1);
  EXPECT_NE(result.token, 4200);
  EXPECT_TRUE(std::isnan(result.logprob)) << "a broken row must show in its log-probability";
}

TEST_P(HeadTest, DrawsFollowTheDistribution) {
  const int vocab = 200, draws = 20000, slots = 50;
  const std::vector<float> chosen = random.Normal(vocab, 1.5f);
  for (float top_p : {1.0f, 0.8f}) {
    ChosenLogits model(*backend, chosen, slots, draws);
    const std::vector<float>& logits = model.logits();
    SlotSampling s = DefaultSampling();
    s.temperature = 1.25f;
    s.top_p = top_p;
    const std::vector<double> expected = FilterReference(logits, s, {});
    std::vector<SlotSampling> sampling(slots, s);
    for (int i = 0; i < slots; ++i) sampling[i].seed = 77 + i;
    model.slots.sampling().Set(sampling);
    std::vector<int> count(vocab, 0);
    for (int i = 0; i < draws / slots; ++i)
      for (const SampleResult& r : model.Run(i, std::vector<int32_t>(slots, -1))) ++count[r.token];
    // Chi-square over ids expected at least 5 times; the rest in one bin.
    double chi = 0, rest_expected = 0;
    int bins = 0, rest = 0;
    for (int id = 0; id < vocab; ++id) {
      const double e = draws * std::exp(expected[id]);
      if (e < 5) {
        rest_expected += e;
        rest += count[id];
        continue;
      }
      chi += (count[id] - e) * (count[id] - e) / e;
      ++bins;
    }
    if (rest_expected > 0) chi += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
    // Mean bins, standard deviation sqrt(2 bins): 5 deviations.
    EXPECT_LT(chi, bins + 5 * std::sqrt(2.0 * bins)) << bins << " bins";
    EXPECT_GT(chi, bins - 5 * std::sqrt(2.0 * bins)) << bins << " bins";
  }
}

TEST_P(HeadTest, DrawDependsOnSeedAndPositionAlone) {
  const std::vector<float> logits = random.Normal(9000, 2);
  SlotSampling s = DefaultSampling();
  std::map<int, int> tokens;
  ChosenLogits alone(*backend, logits, 1);
  ChosenLogits many(*backend, logits, 7);
  std::vector<SlotSampling> sampling(7, s);
  for (int i = 0; i < 7; ++i) sampling[i].seed = i < 4 ? 5 : 1000 + i;
  many.slots.sampling().Set(sampling);
  for (int position = 0; position < 30; ++position) {
    s.seed = 5;
    const SampleResult once = alone.Draw(s, position);
    const SampleResult twice = alone.Draw(s, position);
    EXPECT_EQ(once.token, twice.token);
    const auto results = many.Run(position, std::vector<int32_t>(7, -1));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(results[i].token, once.token);
    ++tokens[once.token];
    for (int i = 4; i < 7; ++i) ++tokens[results[i].token];
  }
  EXPECT_GT(tokens.size(), 60u) << "other seeds and positions give other tokens";
}

TEST_P(HeadTest, PrunedDrawEqualsTheFullOne) {
  // With top_k of almost all ids every kept id is looked at; the result must be that of the pruned
  // draw over all of them.
  for (float spread : {0.01f, 1.0f, 8.0f}) {
    std::vector<float> logits = random.Normal(8300, spread);
    logits[4096] = -1e9f;
    ChosenLogits model(*backend, logits, 1);
    for (int i = 0; i < 30; ++i) {
      SlotSampling s = DefaultSampling();
      s.seed = i * 0x9e3779b97f4a7c15;
      const SampleResult pruned = model.Draw(s, i);
      s.top_k = 8299;
      EXPECT_EQ(model.Draw(s, i).token, pruned.token);
    }
  }
}

RC_FOR_ALL_DEVICES(HeadTest);

}  // namespace
}  // namespace rollcast
