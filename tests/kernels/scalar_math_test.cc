// Philox, logarithm, exponential and Gumbel numbers of the draw.
#include "kernels/cpu/scalar_math.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

namespace rollcast::cpu {
namespace {

std::array<uint32_t, 4> PhiloxOf(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  std::array<uint32_t, 4> out;
  Philox(counter.data(), key.data(), out.data());
  return out;
}

// The known answers that are published with the generator (philox4x32, 10 rounds).
TEST(ScalarMath, PhiloxKnownAnswers) {
  using A = std::array<uint32_t, 4>;
  EXPECT_EQ(PhiloxOf({0, 0, 0, 0}, {0, 0}), (A{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(PhiloxOf({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (A{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(PhiloxOf({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (A{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(ScalarMath, NoiseWordsAreNeighbouringOutputs) {
  const auto out = PhiloxOf({3, 17, 0, 0}, {0x89abcdef, 0x01234567});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(NoiseWord(0x0123456789abcdef, 17, 12 + i), out[i]);
}

TEST(ScalarMath, LogAndExp) {
  std::mt19937_64 engine(1);
  std::uniform_real_distribution<double> exponent(-300, 300), small(-1e-3, 1e-3);
  for (int i = 0; i < 20000; ++i) {
    const double x = std::exp2(exponent(engine)), near_one = 1 + small(engine);
    EXPECT_NEAR(Log(x), std::log(x), 1e-13 * std::abs(std::log(x)));
    EXPECT_NEAR(Log(near_one), std::log(near_one), 1e-13 * std::abs(std::log(near_one)));
    const double y = exponent(engine);
    EXPECT_NEAR(Exp(y), std::exp(y), 1e-13 * std::exp(y));
  }
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Log(1), 0);
  EXPECT_EQ(Exp(0), 1);
  EXPECT_EQ(Log(0), -inf);
  EXPECT_EQ(Log(inf), inf);
  EXPECT_EQ(Exp(-inf), 0);
  EXPECT_EQ(Exp(inf), inf);
  EXPECT_TRUE(std::isnan(Log(-1)));
  EXPECT_TRUE(std::isnan(Log(std::nan(""))));
  EXPECT_TRUE(std::isnan(Exp(std::nan(""))));
}

TEST(ScalarMath, GumbelIsBoundedAsThePruningAssumes) {
  EXPECT_NEAR(Gumbel(0x80000000), -std::log(-std::log(0.5)), 1e-6);
  EXPECT_LT(Gumbel(0xffffffff), kMaxGumbel);
  EXPECT_NEAR(Gumbel(0xffffffff), 33 * std::log(2.0), 1e-5);
  EXPECT_NEAR(Gumbel(0), -std::log(33 * std::log(2.0)), 1e-6);
  std::mt19937 engine(2);
  double sum = 0;
  const int n = 200000;
  for (int i = 0; i < n; ++i) sum += Gumbel(static_cast<uint32_t>(engine()));
  EXPECT_NEAR(sum / n, 0.5772, 0.015);  // Euler's constant; standard error 0.003
}

}  // namespace
}  // namespace rollcast::cpu
