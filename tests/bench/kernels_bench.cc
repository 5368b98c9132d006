// Times of the CPU backend with the dimensions of SmolLM2-135M: whole steps (drawn at temperature
// 1, with log-probabilities) and the parts of one, beside what the machine can do in the same run.
//
// ROLLCAST_BENCH_DEVICE (default "cpu") is a device as the op tests write it: "cpu:avx2:1".
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/kernels/toy_decoder.h"

namespace rollcast {
namespace {

std::string Device() {
  const char* device = std::getenv("ROLLCAST_BENCH_DEVICE");
  return device != nullptr ? device : "cpu";
}

ToyDims SmolDims(int slots) {
  ToyDims dims;
  dims.layers = 30;
  dims.hidden = 576;
  dims.intermediate = 1536;
  dims.heads = 9;
  dims.kv_heads = 3;
  dims.head_dim = dims.rotary_dim = 64;
  dims.vocab = 49152;
  dims.num_slots = slots;
  dims.max_context = 512;
  dims.kv_fill = 0.01f;
  return dims;
}

/// One decode step of `batch` sequences with 301 tokens each.
void BM_DecodeStep(benchmark::State& state) {
  const int batch = static_cast<int>(state.range(0));
  const auto backend = MakeBackend(ParseDevice(Device()));
  ToyDecoder decoder(*backend, SmolDims(batch), 1);
  std::vector<ToyDecoder::Segment> segments;
  std::vector<ToyDecoder::SampleAt> samples;
  for (int i = 0; i < batch; ++i) {
    segments.push_back({i, 0, {-1}});
    samples.push_back({i, i, -1});
  }
  decoder.SetBatch(segments, samples);
  for (auto _ : state) {
    decoder.slots.length().Set(std::vector<int32_t>(batch, 301));
    decoder.Step();
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(batch), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_DecodeStep)
    ->Arg(1)
    ->Arg(4)
    ->Arg(16)
    ->Arg(64)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();

void BM_PrefillStep(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  const auto backend = MakeBackend(ParseDevice(Device()));
  ToyDecoder decoder(*backend, SmolDims(1), 1);
  decoder.SetBatch({{0, 0, std::vector<int32_t>(rows, 17)}}, {{rows - 1, 0, -1}});
  for (auto _ : state) {
    decoder.slots.stopped().Set({0});
    decoder.Step();
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(rows), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_PrefillStep)
    ->Arg(128)
    ->Arg(512)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();

/// rows x [n, k] bf16, the weights cycling through 300 MB so that they come from memory.
void BM_Product(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0)), n = static_cast<int>(state.range(1)),
            k = static_cast<int>(state.range(2));
  const auto backend = MakeBackend(ParseDevice(Device()));
  const size_t bytes = 2 * static_cast<size_t>(n) * k;
  const int copies = static_cast<int>(300'000'000 / bytes) + 1;
  const Buffer weights = backend->Allocate(bytes * copies);
  std::memset(weights.data(), 0x3c, bytes * copies);
  const DeviceArray<float> x(*backend, static_cast<size_t>(rows) * k, 0.5f),
      out(*backend, static_cast<size_t>(rows) * n, 0.0f);
  TestBatch batch(*backend, std::vector<int32_t>(rows, 0), std::vector<int32_t>(rows, 0));
  int i = 0;
  for (auto _ : state) {
    const TensorView weight = {weights.as<char>() + bytes * (i++ % copies), DType::kBF16, {n, k}};
    backend->ProjectAdd({&batch.batch, x.data(), k, weight, TensorView(), out.data()});
  }
  using benchmark::Counter;
  state.counters["GB/s"] = Counter(bytes * 1e-9, Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] = Counter(bytes * 1e-9 * rows, Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Product)
    ->ArgsProduct({{1, 2, 4, 8, 16, 64, 512}, {3072}, {576}})
    ->ArgsProduct({{1, 16, 64}, {576}, {1536}})
    ->UseRealTime()
    ->MeasureProcessCPUTime();

/// What all cores together read from memory.
void BM_MemoryRead(benchmark::State& state) {
  const size_t words = 40'000'000;
  std::vector<uint64_t> data(words, 1);
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  for (auto _ : state) {
    std::vector<std::thread> workers;
    for (unsigned t = 0; t < threads; ++t)
      workers.emplace_back([&, t] {
        uint64_t sum = 0;
        const size_t begin = words * t / threads, end = words * (t + 1) / threads;
        for (size_t i = begin; i + 8 <= end; i += 8)
          sum += data[i] + data[i + 1] + data[i + 2] + data[i + 3] + data[i + 4] + data[i + 5] +
                 data[i + 6] + data[i + 7];
        benchmark::DoNotOptimize(sum);
      });
    for (std::thread& w : workers) w.join();
  }
  state.counters["GB/s"] =
      benchmark::Counter(8e-9 * words, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_MemoryRead)->UseRealTime()->MeasureProcessCPUTime();

/// What all cores together multiply and add in single precision: a product whose data stays in the
/// first-level cache.
void BM_ProductInCache(benchmark::State& state) {
  const auto backend = MakeBackend(ParseDevice(Device()));
  const int rows = 8, n = 96 * 16, k = 64;
  const DeviceArray<float> w(*backend, static_cast<size_t>(n) * k, 0.5f),
      x(*backend, rows * k, 0.5f), out(*backend, static_cast<size_t>(rows) * n, 0.0f);
  TestBatch batch(*backend, std::vector<int32_t>(rows, 0), std::vector<int32_t>(rows, 0));
  for (auto _ : state)
    backend->ProjectAdd(
        {&batch.batch, x.data(), k, {w.data(), DType::kBF16, {n, k}}, TensorView(), out.data()});
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * rows * n * k, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_ProductInCache)->UseRealTime()->MeasureProcessCPUTime();

}  // namespace
}  // namespace rollcast

BENCHMARK_MAIN();
