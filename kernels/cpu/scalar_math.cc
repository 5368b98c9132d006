#include "kernels/cpu/scalar_math.h"

#include <cstring>

namespace rollcast::cpu {

namespace {

constexpr double kInfinity = __builtin_inf();
constexpr double kLn2High =
    0x1.62e42fefap-1;  // 36 bits, so that multiples by an exponent are exact
constexpr double kLn2Low = 0x1.cf79abc9e3b39p-40;

}  // namespace

void Philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kPhiloxM0) * c0;
    const uint64_t p1 = static_cast<uint64_t>(kPhiloxM1) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

uint32_t NoiseWord(uint64_t seed, uint32_t position, int32_t id) {
  const uint32_t counter[4] = {static_cast<uint32_t>(id) / 4, position, 0, 0};
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  uint32_t out[4];
  Philox(counter, key, out);
  return out[static_cast<uint32_t>(id) % 4];
}

double Log(double x) {
  if (!(x > 0 && x < kInfinity)) return x == 0 ? -kInfinity : x < 0 ? __builtin_nan("") : x;
  uint64_t bits;
  memcpy(&bits, &x, 8);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL;
  double m;
  memcpy(&m, &bits, 8);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172.
  const double s = (m - 1) / (m + 1), z = s * s;
  double p = 1.0 / 19;
  for (int k = 17; k >= 1; k -= 2) p = p * z + 1.0 / k;
  return exponent * kLn2High + (exponent * kLn2Low + 2 * s * p);
}

double Exp(double x) {
  if (!(x >= -700 && x <= 700)) return x < 0 ? 0 : x > 0 ? kInfinity : x;
  const double shifted = x * 1.4426950408889634 + 0x1.8p52;
  const double n = shifted - 0x1.8p52;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double p = 1;
  for (int k = 13; k >= 1; --k) p = p * r / k + 1;
  const uint64_t bits = static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52;
  double power;
  memcpy(&power, &bits, 8);
  return p * power;
}

float Gumbel(uint32_t word) {
  const double u = (word + 0.5) * 0x1p-32;
  return static_cast<float>(-Log(-Log(u)));
}

}  // namespace rollcast::cpu
