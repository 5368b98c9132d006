// The bit contract: what is computed for a sequence depends on that sequence alone.
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/kernels/toy_decoder.h"

namespace rollcast {
namespace {

/// All that a run of one sequence gives.
struct Trace {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs, logits;
};

::testing::AssertionResult SameTrace(const Trace& a, const Trace& b) {
  if (a.tokens != b.tokens) return ::testing::AssertionFailure() << "other tokens";
  const ::testing::AssertionResult same = SameBits(a.logprobs, b.logprobs);
  return same ? SameBits(a.logits, b.logits) : same;
}

std::vector<int32_t> Prompt(int n, int vocab, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(random.Below(vocab));
  return tokens;
}

/// Fills traces with what its steps give.
class TracedDecoder : public ToyDecoder {
 public:
  TracedDecoder(Backend& backend, const ToyDims& dims) : ToyDecoder(backend, dims, 5), dims_(dims) {
    want_logits = true;
  }

  /// Of a sequence that begins in `slot` with `prompt`, whose tokens may go on beyond
  /// `prompt_length` when they are to be scored; -1: all of them are the prompt.
  void Prepare(int slot, const std::vector<int32_t>& prompt, SlotSampling sampling,
               int prompt_length = -1) {
    sampling.prompt_length = prompt_length < 0 ? static_cast<int>(prompt.size()) : prompt_length;
    auto all = slots.sampling().Get();
    all[slot] = sampling;
    slots.sampling().Set(all);
    auto history = slots.history().Get();
    for (size_t i = 0; i < prompt.size(); ++i)
      history[slot * slots.state.max_context + i] = prompt[i];
    slots.history().Set(history);
  }

  /// Appends sample `i` of the last step.
  void Append(Trace& trace, const std::vector<SampleResult>& results, size_t i = 0) const {
    const SampleResult& result = results.at(i);
    const std::vector<float> all = logits.Get();
    const auto vocab = static_cast<int64_t>(dims_.vocab);
    const auto begin = all.begin() + static_cast<int64_t>(i) * vocab;
    trace.tokens.push_back(result.token);
    trace.logprobs.insert(trace.logprobs.end(),
                          {result.logprob, result.logprob_raw, result.logprob_filtered});
    trace.logits.insert(trace.logits.end(), begin, begin + vocab);
    EXPECT_TRUE(std::all_of(begin, begin + vocab, [](float x) { return std::isfinite(x); }));
  }

 private:
  const ToyDims dims_;
};

/// Prefills `prompt` in chunks and draws `count` tokens, alone in the batch.
Trace Generate(Backend& backend, const ToyDims& dims, const std::vector<int32_t>& prompt, int chunk,
               int count, const SlotSampling& sampling, int slot = 0) {
  TracedDecoder decoder(backend, dims);
  decoder.Prepare(slot, prompt, sampling);
  Trace trace;
  for (size_t i = 0; i < prompt.size(); i += chunk) {
    const size_t end = std::min(prompt.size(), i + chunk);
    const bool last = end == prompt.size();
    std::vector<ToyDecoder::SampleAt> samples;
    if (last) samples.push_back({static_cast<int>(end - i) - 1, slot, -1});
    const auto results = decoder.Run(
        {{slot, static_cast<int>(i), {prompt.begin() + i, prompt.begin() + end}}}, samples);
    if (last) decoder.Append(trace, results);
  }
  for (int i = 1; i < count; ++i)
    decoder.Append(trace, decoder.Run({{slot, 0, {-1}}}, {{0, slot, -1}}));
  return trace;
}

/// A graph of one decode step of `slots`, -1 = padding. Capture may run the step, so no slot may be
/// running meanwhile.
std::unique_ptr<CapturedGraph> CaptureDecode(Backend& backend, ToyDecoder& decoder,
                                             const std::vector<int>& slots) {
  std::vector<ToyDecoder::Segment> segments;
  std::vector<ToyDecoder::SampleAt> samples;
  for (int i = 0; i < static_cast<int>(slots.size()); ++i) {
    segments.push_back({slots[i], 0, {-1}});
    samples.push_back({slots[i] < 0 ? -1 : i, std::max(slots[i], 0), -1});
  }
  decoder.SetBatch(segments, samples);
  const std::vector<int32_t> stopped = decoder.slots.stopped().Get();
  decoder.slots.stopped().Set(std::vector<int32_t>(stopped.size(), 1));
  auto graph = backend.Capture([&decoder] { decoder.Step(); });
  decoder.slots.stopped().Set(stopped);
  return graph;
}

ToyDims Odd() {
  ToyDims dims;
  dims.hidden = 100;
  dims.intermediate = 17;
  dims.heads = 6;
  dims.kv_heads = 2;
  dims.head_dim = 80;
  dims.rotary_dim = 40;
  dims.vocab = 4099;
  dims.page_size = 1;
  dims.bias = true;
  return dims;
}

ToyDims Windowed() {
  ToyDims dims;
  dims.hidden = 96;
  dims.intermediate = 33;
  dims.heads = 7;
  dims.kv_heads = 1;
  dims.head_dim = 96;
  dims.rotary_dim = 96;
  dims.vocab = 517;
  dims.page_size = 64;
  dims.window = 50;
  dims.qk_norm = true;
  dims.dtype = DType::kF16;
  return dims;
}

ToyDims Plain() {
  ToyDims dims;
  dims.dtype = DType::kF32;
  dims.heads = 4;
  dims.kv_heads = 4;
  dims.head_dim = 20;
  dims.rotary_dim = 20;
  return dims;
}

/// Sizes that the fast kernels of a GPU take.
ToyDims Aligned() {
  ToyDims dims;
  dims.hidden = 136;
  dims.intermediate = 72;
  dims.heads = 8;
  dims.kv_heads = 2;
  dims.head_dim = 64;
  dims.rotary_dim = 64;
  dims.vocab = 517;
  dims.bias = true;
  return dims;
}

std::vector<SlotSampling> Samplings() {
  std::vector<SlotSampling> all(4, DefaultSampling());
  all[0].seed = 11;
  all[1].temperature = 0.7f;
  all[1].top_p = 0.9f;
  all[1].top_k = 40;
  all[1].seed = 0xfedcba9876543210;
  all[2].temperature = 0;
  all[3].temperature = 1.3f;
  all[3].repetition_penalty = 1.2f;
  all[3].frequency_penalty = 0.1f;
  all[3].min_p = 0.01f;
  return all;
}

std::vector<ToyDims> Models() { return {Odd(), Windowed(), Plain(), Aligned()}; }

/// Every model on every device.
class Bits : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  ToyDims dims() const { return Models()[std::get<1>(GetParam())]; }
  const std::unique_ptr<Backend> backend = MakeBackend(ParseDevice(std::get<0>(GetParam())));
};

class CpuBits : public ::testing::TestWithParam<int> {
 protected:
  ToyDims dims() const { return Models()[GetParam()]; }
};

TEST_P(CpuBits, AllInstructionSetsAndThreadCountsAgree) {
  const auto prompt = Prompt(130, dims().vocab, 3);
  for (const SlotSampling& sampling : Samplings()) {
    Trace first;
    for (const std::string& device : CpuDevices()) {
      SCOPED_TRACE(device);
      const auto backend = MakeBackend(ParseDevice(device));
      const Trace trace = Generate(*backend, dims(), prompt, 130, 8, sampling);
      if (first.tokens.empty()) first = trace;
      EXPECT_TRUE(SameTrace(trace, first));
    }
    const auto backend = MakeBackend({"cpu", 2, "auto"});
    EXPECT_TRUE(SameTrace(Generate(*backend, dims(), prompt, 130, 8, sampling), first));
  }
}

// A step whose last sequence has just finished, a chunk that wants no samples.
TEST_P(Bits, StepsWithoutRowsOrSamplesDoNothingMore) {
  TracedDecoder decoder(*backend, dims());
  const auto prompt = Prompt(7, dims().vocab, 6);
  decoder.Prepare(1, prompt, Samplings()[0]);
  const std::vector<int32_t> length = decoder.slots.length().Get(),
                             history = decoder.slots.history().Get();
  EXPECT_TRUE(decoder.Run({}, {}).empty());
  EXPECT_TRUE(decoder.Run({{1, 0, prompt}}, {}).empty());
  EXPECT_TRUE(SameBits(decoder.slots.length().Get(), length));
  EXPECT_TRUE(SameBits(decoder.slots.history().Get(), history));
  for (const float x : decoder.hidden.Get()) EXPECT_TRUE(std::isfinite(x));
}

TEST_P(Bits, ChunkingAndSlotDoNotMatter) {
  const auto prompt = Prompt(150, dims().vocab, 4);
  const SlotSampling sampling = Samplings()[0];
  const Trace whole = Generate(*backend, dims(), prompt, 150, 12, sampling);
  for (int chunk : {1, 3, 16, 63, 64, 65, 100})
    EXPECT_TRUE(
        SameTrace(Generate(*backend, dims(), prompt, chunk, 12, sampling, chunk % 4), whole))
        << "chunk " << chunk;
}

TEST_P(Bits, BatchMatesDoNotMatter) {
  ToyDims d = dims();
  d.max_context = 160;
  d.num_slots = 33;
  const int count = 6;
  std::vector<Trace> alone;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<SlotSampling> samplings;
  for (int i = 0; i < d.num_slots; ++i) {
    prompts.push_back(Prompt(1 + 37 * i % 140, d.vocab, 100 + i));
    samplings.push_back(Samplings()[i % 4]);
    samplings.back().seed += i;
    alone.push_back(Generate(*backend, d, prompts[i], 1000, count, samplings[i], i));
  }
  for (int batch = 1; batch <= d.num_slots; batch += batch < 10 ? 1 : 7) {
    TracedDecoder decoder(*backend, d);
    std::vector<Trace> traces(batch);
    // Sequence i joins at step i % 3, so prefill and decode rows mix; slots run backwards and a
    // padding segment lies between.
    for (int step = 0; step < count + 2; ++step) {
      std::vector<ToyDecoder::Segment> segments;
      std::vector<ToyDecoder::SampleAt> samples;
      std::vector<int> who;
      int row = 0;
      for (int j = 0; j < batch; ++j) {
        const int i = batch - 1 - j;
        const int age = step - i % 3;
        if (age < 0 || age >= count) continue;
        if (age == 0) {
          decoder.Prepare(i, prompts[i], samplings[i]);
          segments.push_back({i, 0, prompts[i]});
        } else {
          segments.push_back({i, 0, {-1}});
        }
        row += static_cast<int>(segments.back().tokens.size());
        samples.push_back({row - 1, i, -1});
        who.push_back(i);
        if (j == batch / 2) {
          segments.push_back({-1, 0, {-1, -1}});
          row += 2;
          samples.push_back({-1, 0, -1});
          who.push_back(-1);
        }
      }
      const auto results = decoder.Run(segments, samples);
      for (size_t s = 0; s < who.size(); ++s) {
        EXPECT_EQ(results[s].valid, who[s] >= 0);
        if (who[s] >= 0) decoder.Append(traces[who[s]], results, s);
      }
    }
    for (int i = 0; i < batch; ++i)
      EXPECT_TRUE(SameTrace(traces[i], alone[i])) << i << " of " << batch;
  }
}

TEST_P(Bits, ScoringGivesTheDecodedLogProbabilities) {
  const auto prompt = Prompt(70, dims().vocab, 9);
  const int count = 20;
  for (const SlotSampling& sampling : Samplings()) {
    const Trace decoded = Generate(*backend, dims(), prompt, 70, count, sampling);
    TracedDecoder decoder(*backend, dims());
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), decoded.tokens.begin(), decoded.tokens.end());
    decoder.Prepare(1, all, sampling, static_cast<int>(prompt.size()));
    std::vector<ToyDecoder::SampleAt> samples;
    for (int i = 0; i < count; ++i)
      samples.push_back({static_cast<int>(prompt.size()) - 1 + i, 1, decoded.tokens[i]});
    const auto results = decoder.Run({{1, 0, all}}, samples);
    Trace scored;
    for (int i = 0; i < count; ++i) {
      decoder.Append(scored, results, i);
      EXPECT_EQ(results[i].valid, 1);
      EXPECT_EQ(results[i].stopped, 0);
    }
    EXPECT_TRUE(SameTrace(scored, decoded));
    EXPECT_EQ(decoder.slots.length().Get()[1], 0) << "scoring must not advance the slot";
  }
}

TEST_P(Bits, ReplayIsTheEagerStep) {
  const auto prompt = Prompt(20, dims().vocab, 12);
  const Trace eager = Generate(*backend, dims(), prompt, 20, 10, Samplings()[0]);
  TracedDecoder decoder(*backend, dims());
  decoder.Prepare(2, prompt, Samplings()[0]);
  Trace trace;
  decoder.Append(trace, decoder.Run({{2, 0, prompt}}, {{19, 2, -1}}));
  const auto graph = CaptureDecode(*backend, decoder, {2, -1});
  EXPECT_EQ(decoder.slots.length().Get()[2], 21) << "capture must change no slot";
  for (int i = 1; i < 10; ++i) {
    graph->Replay();
    decoder.Append(trace, decoder.Results());
  }
  EXPECT_TRUE(SameTrace(trace, eager));
}

// A slot that another sequence had gives what a fresh one gives, and a stopped one writes nothing
// while its neighbour goes on.
TEST_P(Bits, RecycledSlotForgetsItsEarlierSequence) {
  const auto first_prompt = Prompt(90, dims().vocab, 20), neighbour = Prompt(33, dims().vocab, 21),
             second_prompt = Prompt(17, dims().vocab, 22);
  SlotSampling sampling = Samplings()[3];  // with penalties: the history counts
  const int count = 8;
  const Trace first = Generate(*backend, dims(), first_prompt, 90, count, sampling),
              beside = Generate(*backend, dims(), neighbour, 33, 3 * count, sampling),
              second = Generate(*backend, dims(), second_prompt, 17, count, sampling);

  TracedDecoder decoder(*backend, dims());
  std::vector<Trace> traces(3);
  const auto start = [&](int slot, const std::vector<int32_t>& prompt, Trace& trace) {
    const int length = static_cast<int>(prompt.size());
    SlotSampling own = sampling;
    own.max_length = length + count + (slot == 1 ? 1000 : 0);
    decoder.Prepare(slot, prompt, own);
    auto stopped = decoder.slots.stopped().Get();
    stopped[slot] = 0;
    decoder.slots.stopped().Set(stopped);
    decoder.Append(trace, decoder.Run({{slot, 0, prompt}}, {{length - 1, slot, -1}}));
  };
  start(0, first_prompt, traces[0]);
  start(1, neighbour, traces[1]);
  const auto decode = [&](Trace& of_slot_0, int steps) {
    const auto graph = CaptureDecode(*backend, decoder, {0, -1, 1});
    for (int i = 0; i < steps; ++i) {
      const bool running = decoder.slots.stopped().Get()[0] == 0;
      const auto history = decoder.slots.history().Get();
      graph->Replay();
      const auto results = decoder.Results();
      EXPECT_EQ(results[0].valid, running);
      EXPECT_EQ(results[1].valid, 0);
      if (running) {
        decoder.Append(of_slot_0, results);
      } else {
        const auto after = decoder.slots.history().Get();
        const size_t end = decoder.slots.state.max_context;
        EXPECT_TRUE(SameBits(std::vector<int32_t>(after.begin(), after.begin() + end),
                             {history.begin(), history.begin() + end}));
      }
      decoder.Append(traces[1], results, 2);
    }
  };
  decode(traces[0], count + 3);
  EXPECT_EQ(decoder.slots.length().Get()[0], 90 + count);
  start(0, second_prompt, traces[2]);
  decode(traces[2], count + 1);
  EXPECT_TRUE(SameTrace(traces[0], first));
  EXPECT_TRUE(SameTrace(traces[2], second));
  const size_t steps = traces[1].tokens.size();
  EXPECT_EQ(traces[1].tokens,
            std::vector<int32_t>(beside.tokens.begin(), beside.tokens.begin() + steps));
  EXPECT_TRUE(SameBits(traces[1].logits,
                       {beside.logits.begin(), beside.logits.begin() + traces[1].logits.size()}));
}

// All ops of a decoder in a row, against the CPU backend with the same weights.
TEST_P(Bits, LogitsAreThoseOfTheCpu) {
  ToyDims d = dims();
  d.dtype = DType::kBF16;
  const auto oracle = MakeBackend({"cpu", 2, "auto"});
  const auto prompt = Prompt(150, d.vocab, 30);
  const auto score = [&](Backend& on) {
    TracedDecoder decoder(on, d);
    decoder.Prepare(1, prompt, DefaultSampling());
    std::vector<ToyDecoder::SampleAt> samples;
    for (int i = 0; i + 1 < static_cast<int>(prompt.size()); i += 7)
      samples.push_back({i, 1, prompt[i + 1]});
    decoder.Run({{1, 0, prompt}}, samples);
    return decoder.logits.Get();
  };
  const std::vector<float> expected = score(*oracle);
  const std::vector<float> actual = score(*backend);
  const double tolerance = backend->activation_dtype() == DType::kF32 ? 0 : 2e-2;
  EXPECT_TRUE(RelativelyNear(actual, {expected.begin(), expected.end()}, tolerance));
}

INSTANTIATE_TEST_SUITE_P(Models, Bits,
                         ::testing::Combine(::testing::ValuesIn(WithGpu({"cpu:auto:2"})),
                                            ::testing::Values(0, 1, 2, 3)),
                         [](const auto& info) {
                           return DeviceName(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });
INSTANTIATE_TEST_SUITE_P(Models, CpuBits, ::testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace rollcast
