// What the benchmarks share: weights and requests that are random to the machine, and what is said
// of the machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "launch/bench_command.h"

namespace rollcast {

double SecondsSince(std::chrono::steady_clock::time_point start);
/// Of an even number of values the mean of the middle two.
double Median(std::vector<double> values);

/// Random bf16 weights of standard deviation 0.02 and norms of 1, from one repeated block: a
/// benchmark's weights need to be random to the memory system, not to anybody else. Another `salt`
/// gives other weights.
void FillForTiming(WeightStore& store, uint64_t salt);

/// `length` random tokens and `max_tokens` to draw, whatever is drawn.
Request RandomRequest(uint64_t id, int length, int max_tokens, double temperature, int vocab,
                      std::mt19937_64& random);

/// Throws Error when the engine refuses.
void SubmitOrThrow(Engine& engine, Request request);

/// How the JSON line of bench `what` begins: its name, the shape or the model's folder, device,
/// versions, present clocks, and how tokens are drawn.
nlohmann::ordered_json BenchHead(const std::string& what, const BenchOptions& options,
                                 const Backend& backend);

}  // namespace rollcast
