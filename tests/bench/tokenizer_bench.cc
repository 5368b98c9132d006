// Bytes a second of Encode and Decode on one core, over the texts of a tokenizer's test cases
// (code, several scripts) and over plain English prose. ROLLCAST_TOKENIZERS adds files, separated
// by colons.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "rollout/tokenizer.h"

namespace rollcast {
namespace {

const std::filesystem::path kData = std::filesystem::path(ROLLCAST_TEST_DATA) / "tokenizers";

/// A text of about 1 MB whose words are drawn with the frequencies of a natural text: rank r of
/// 20000 words has probability ~ 1 / r (Zipf).
std::string Prose() {
  std::mt19937 random(1);
  const std::string syllables[] = {"the", "con", "ing", "er",  "al", "re", "ti",
                                   "on",  "men", "ver", "pro", "ca", "so", "ly",
                                   "est", "ma",  "in",  "per", "a",  "es"};
  std::vector<std::string> words(20000);
  for (size_t i = 0; i < words.size(); ++i)
    for (size_t k = 0; k < 1 + (i > 50) + (i > 2000) + random() % 2; ++k)
      words[i] += syllables[random() % std::size(syllables)];
  std::vector<double> weights(words.size());
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = 1.0 / static_cast<double>(i + 1);
  std::discrete_distribution<size_t> pick(weights.begin(), weights.end());
  std::string text;
  while (text.size() < 1 << 20) {
    std::string word = words[pick(random)];
    if (random() % 12 == 0) word[0] = static_cast<char>(word[0] - 'a' + 'A');
    text += word;
    text += random() % 10 == 0 ? ", " : random() % 15 == 0 ? ".\n" : " ";
  }
  return text;
}

std::string Mixed() {
  std::ifstream in(kData / "gpt2" / "cases.jsonl");
  std::string text;
  for (std::string line; std::getline(in, line);)
    text += nlohmann::json::parse(line)["text"].get<std::string>() + "\n";
  const std::string once = text;
  while (text.size() < 1 << 20) text += once;
  return text;
}

void Encode(benchmark::State& state, const std::filesystem::path& path, const std::string& text) {
  const auto tokenizer = Tokenizer::Load(path);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->Encode(text));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

/// No word has been seen before.
void EncodeCold(benchmark::State& state, const std::filesystem::path& path,
                const std::string& text) {
  for (auto _ : state) {
    state.PauseTiming();
    auto tokenizer = Tokenizer::Load(path);
    state.ResumeTiming();
    benchmark::DoNotOptimize(tokenizer->Encode(text));
    state.PauseTiming();
    tokenizer.reset();
    state.ResumeTiming();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

void Decode(benchmark::State& state, const std::filesystem::path& path, const std::string& text) {
  const auto tokenizer = Tokenizer::Load(path);
  const auto ids = tokenizer->Encode(text);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->Decode(ids, true));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

void Load(benchmark::State& state, const std::filesystem::path& path) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::Load(path));
}

void Register() {
  std::vector<std::filesystem::path> paths;
  for (const char* name : {"gpt2", "llama3", "qwen2", "llama2", "metaspace"})
    paths.push_back(kData / name);
  if (const char* more = std::getenv("ROLLCAST_TOKENIZERS")) {
    std::istringstream list(more);
    for (std::string path; std::getline(list, path, ':');) paths.emplace_back(path);
  }
  const std::string prose = Prose(), mixed = Mixed();
  for (const auto& path : paths) {
    const std::string name = path.filename().string();
    benchmark::RegisterBenchmark(("encode/prose/" + name).c_str(), Encode, path, prose);
    benchmark::RegisterBenchmark(("encode/cold/" + name).c_str(), EncodeCold, path, prose);
    benchmark::RegisterBenchmark(("encode/mixed/" + name).c_str(), Encode, path, mixed);
    benchmark::RegisterBenchmark(("decode/prose/" + name).c_str(), Decode, path, prose);
    benchmark::RegisterBenchmark(("load/" + name).c_str(), Load, path);
  }
}

}  // namespace
}  // namespace rollcast

int main(int argc, char** argv) {
  rollcast::Register();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
