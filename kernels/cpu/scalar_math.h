// Scalar functions of the draw and of log-probabilities, in double precision without the C library,
// so that every machine gives the same bits. Compiled once, for the base instruction set.
#pragma once

#include <cstdint>

namespace rollcast::cpu {

// Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3"
// (2011).
constexpr uint32_t kPhiloxM0 = 0xd2511f53, kPhiloxM1 = 0xcd9e8d57;
constexpr uint32_t kPhiloxW0 = 0x9e3779b9, kPhiloxW1 = 0xbb67ae85;
void Philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/// The noise word of a token id at an absolute position: word id % 4 of Philox at counter
/// (id / 4, position, 0, 0) under the seed.
uint32_t NoiseWord(uint64_t seed, uint32_t position, int32_t id);

/// Natural logarithm of 0, a normal number or infinity; relative error below 1e-13.
double Log(double x);

/// exp(x), 0 below -700 and infinity above 700; relative error below 1e-14.
double Exp(double x);

/// -log(-log u) with u = (word + 1/2) 2^-32.
float Gumbel(uint32_t word);
constexpr float kMaxGumbel = 22.9f;  // of all words: 33 ln 2 = 22.874

}  // namespace rollcast::cpu
