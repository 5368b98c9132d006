// The bit contract: what is computed for a sequence depends on that sequence alone.
#include <cstdint>
#include <string>
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

void AppendResult(Trace& trace, const SampleResult& result, const std::vector<float>& logits,
                  int sample, int vocab) {
  trace.tokens.push_back(result.token);
  trace.logprobs.insert(trace.logprobs.end(),
                        {result.logprob, result.logprob_raw, result.logprob_filtered});
  trace.logits.insert(trace.logits.end(), logits.begin() + static_cast<int64_t>(sample) * vocab,
                      logits.begin() + static_cast<int64_t>(sample + 1) * vocab);
  EXPECT_TRUE(std::all_of(trace.logits.end() - vocab, trace.logits.end(),
                          [](float x) { return std::isfinite(x); }));
}

void PrepareSlot(ToyDecoder& decoder, int slot, const std::vector<int32_t>& prompt,
                 const SlotSampling& sampling) {
  auto all = decoder.slots.sampling().Get();
  all[slot] = sampling;
  decoder.slots.sampling().Set(all);
  auto history = decoder.slots.history().Get();
  for (size_t i = 0; i < prompt.size(); ++i)
    history[slot * decoder.slots.state.max_context + i] = prompt[i];
  decoder.slots.history().Set(history);
}

/// Prefills `prompt` in chunks and draws `count` tokens, alone in the batch.
Trace Generate(Backend& backend, const ToyDims& dims, const std::vector<int32_t>& prompt, int chunk,
               int count, SlotSampling sampling, int slot = 0) {
  ToyDecoder decoder(backend, dims, 5);
  decoder.want_logits = true;
  sampling.prompt_length = static_cast<int>(prompt.size());
  PrepareSlot(decoder, slot, prompt, sampling);
  Trace trace;
  for (size_t i = 0; i < prompt.size(); i += chunk) {
    const size_t end = std::min(prompt.size(), i + chunk);
    const bool last = end == prompt.size();
    std::vector<ToyDecoder::SampleAt> samples;
    if (last) samples.push_back({static_cast<int>(end - i) - 1, slot, -1});
    const auto results = decoder.Run(
        {{slot, static_cast<int>(i), {prompt.begin() + i, prompt.begin() + end}}}, samples);
    if (last) AppendResult(trace, results[0], decoder.logits.Get(), 0, dims.vocab);
  }
  for (int i = 1; i < count; ++i) {
    const auto results = decoder.Run({{slot, 0, {-1}}}, {{0, slot, -1}});
    AppendResult(trace, results[0], decoder.logits.Get(), 0, dims.vocab);
  }
  return trace;
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

class Bits : public ::testing::TestWithParam<int> {
 protected:
  ToyDims dims() const { return std::vector<ToyDims>{Odd(), Windowed(), Plain()}[GetParam()]; }
};

TEST_P(Bits, AllInstructionSetsAndThreadCountsAgree) {
  const auto prompt = Prompt(130, dims().vocab, 3);
  for (const SlotSampling& sampling : Samplings()) {
    Trace first;
    for (const std::string& device : TestDevices()) {
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

TEST_P(Bits, ChunkingAndSlotDoNotMatter) {
  const auto backend = MakeBackend({"cpu", 2, "auto"});
  const auto prompt = Prompt(150, dims().vocab, 4);
  const SlotSampling sampling = Samplings()[0];
  const Trace whole = Generate(*backend, dims(), prompt, 150, 12, sampling);
  for (int chunk : {1, 3, 16, 63, 64, 65, 100})
    EXPECT_TRUE(
        SameTrace(Generate(*backend, dims(), prompt, chunk, 12, sampling, chunk % 4), whole))
        << "chunk " << chunk;
}

TEST_P(Bits, BatchMatesDoNotMatter) {
  const auto backend = MakeBackend({"cpu", 2, "auto"});
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
    samplings.back().prompt_length = static_cast<int>(prompts.back().size());
    samplings.back().seed += i;
    alone.push_back(Generate(*backend, d, prompts[i], 1000, count, samplings[i], i));
  }
  for (int batch = 1; batch <= d.num_slots; batch += batch < 10 ? 1 : 7) {
    ToyDecoder decoder(*backend, d, 5);
    decoder.want_logits = true;
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
          PrepareSlot(decoder, i, prompts[i], samplings[i]);
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
      const auto logits = decoder.logits.Get();
      for (size_t s = 0; s < who.size(); ++s) {
        EXPECT_EQ(results[s].valid, who[s] >= 0);
        if (who[s] >= 0) AppendResult(traces[who[s]], results[s], logits, s, d.vocab);
      }
    }
    for (int i = 0; i < batch; ++i)
      EXPECT_TRUE(SameTrace(traces[i], alone[i])) << i << " of " << batch;
  }
}

TEST_P(Bits, ScoringGivesTheDecodedLogProbabilities) {
  const auto backend = MakeBackend({"cpu", 2, "auto"});
  const auto prompt = Prompt(70, dims().vocab, 9);
  const int count = 20;
  for (const SlotSampling& sampling : Samplings()) {
    const Trace decoded = Generate(*backend, dims(), prompt, 70, count, sampling);
    ToyDecoder decoder(*backend, dims(), 5);
    decoder.want_logits = true;
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), decoded.tokens.begin(), decoded.tokens.end());
    SlotSampling scoring = sampling;
    scoring.prompt_length = static_cast<int>(prompt.size());
    PrepareSlot(decoder, 1, all, scoring);
    std::vector<ToyDecoder::SampleAt> samples;
    for (int i = 0; i < count; ++i)
      samples.push_back({static_cast<int>(prompt.size()) - 1 + i, 1, decoded.tokens[i]});
    const auto results = decoder.Run({{1, 0, all}}, samples);
    const auto logits = decoder.logits.Get();
    Trace scored;
    for (int i = 0; i < count; ++i) {
      AppendResult(scored, results[i], logits, i, dims().vocab);
      EXPECT_EQ(results[i].valid, 1);
      EXPECT_EQ(results[i].stopped, 0);
    }
    EXPECT_TRUE(SameTrace(scored, decoded));
    EXPECT_EQ(decoder.slots.length().Get()[1], 0) << "scoring must not advance the slot";
  }
}

TEST_P(Bits, ReplayIsTheEagerStep) {
  const auto backend = MakeBackend({"cpu", 2, "auto"});
  const auto prompt = Prompt(20, dims().vocab, 12);
  const Trace eager = Generate(*backend, dims(), prompt, 20, 10, Samplings()[0]);
  ToyDecoder decoder(*backend, dims(), 5);
  decoder.want_logits = true;
  PrepareSlot(decoder, 2, prompt, Samplings()[0]);
  Trace trace;
  auto results = decoder.Run({{2, 0, prompt}}, {{19, 2, -1}});
  AppendResult(trace, results[0], decoder.logits.Get(), 0, dims().vocab);
  decoder.SetBatch({{2, 0, {-1}}, {-1, 0, {-1}}}, {{0, 2, -1}, {-1, -1, -1}});
  const auto graph = backend->Capture([&] { decoder.Step(); });
  EXPECT_EQ(decoder.slots.length().Get()[2], 21) << "capture must not run the step";
  for (int i = 1; i < 10; ++i) {
    graph->Replay();
    AppendResult(trace, decoder.Results()[0], decoder.logits.Get(), 0, dims().vocab);
  }
  EXPECT_TRUE(SameTrace(trace, eager));
}

INSTANTIATE_TEST_SUITE_P(Models, Bits, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace rollcast
