#include "launch/grpo.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "kernels/check.h"
#include "kernels/float_convert.h"

namespace rollcast {
namespace {

constexpr float kNormEps = 1e-5f;

float Bf16(double x) { return Bf16ToFloat(FloatToBf16(static_cast<float>(x))); }

/// A norm, a head and trajectories over them, all random; parameters are bfloat16 values.
struct Toy {
  Toy(int hidden, int vocab, int groups, int group_size, int length, uint64_t seed = 1,
      float temperature = 1)
      : hidden(hidden), vocab(vocab), random(seed) {
    for (int i = 0; i < hidden; ++i) norm.push_back(Bf16(1 + 0.3 * Normal()));
    for (int i = 0; i < hidden * vocab; ++i) head.push_back(Bf16(0.5 * Normal()));
    for (int g = 0; g < groups; ++g) {
      for (int s = 0; s < group_size; ++s) {
        Trajectory t;
        t.prompt_id = StrCat("p", g);
        t.group_id = static_cast<uint64_t>(g) + 10;
        t.sample_index = s;
        t.sampling.temperature = temperature;
        t.reward = Normal();
        for (int k = 0; k < length + s; ++k) {
          t.completion.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
          for (int i = 0; i < hidden; ++i) t.hidden.push_back(static_cast<float>(2 * Normal()));
        }
        trajectories.push_back(t);
      }
    }
    Record(0);
  }

  double Normal() { return std::normal_distribution<double>()(random); }

  /// Log-probabilities as an engine would have recorded them, each off by up to `noise`.
  void Record(double noise) {
    for (Trajectory& t : trajectories) {
      t.logprob.clear();
      for (size_t k = 0; k < t.completion.size(); ++k)
        t.logprob.push_back(static_cast<float>(
            Logprob({norm.begin(), norm.end()}, {head.begin(), head.end()}, t, k) +
            std::uniform_real_distribution<double>(-noise, noise)(random)));
    }
  }

  /// In double precision, straight from the definition.
  double Logprob(const std::vector<double>& n, const std::vector<double>& w, const Trajectory& t,
                 size_t k) const {
    const float* h = t.hidden.data() + static_cast<int64_t>(k) * hidden;
    double squares = 0;
    for (int i = 0; i < hidden; ++i) squares += static_cast<double>(h[i]) * h[i];
    const double scale = 1 / std::sqrt(squares / hidden + kNormEps);
    double sum = 0, target = 0;
    for (int v = 0; v < vocab; ++v) {
      double logit = 0;
      for (int i = 0; i < hidden; ++i) logit += w[v * hidden + i] * n[i] * h[i] * scale;
      logit /= t.sampling.temperature;
      sum += std::exp(logit);
      if (v == t.completion[k]) target = logit;
    }
    return target - std::log(sum);
  }

  /// The objective of the header, from its definition.
  double Loss(const std::vector<double>& n, const std::vector<double>& w,
              const GrpoOptions& options, const std::vector<double>& ref_norm,
              const std::vector<double>& ref_head) const {
    const std::vector<double> advantages = GroupAdvantages(trajectories);
    double loss = 0;
    int tokens = 0;
    for (size_t i = 0; i < trajectories.size(); ++i) {
      const Trajectory& t = trajectories[i];
      for (size_t k = 0; k < t.completion.size(); ++k, ++tokens) {
        const double logprob = Logprob(n, w, t, k);
        const double ratio = std::exp(logprob - t.logprob[k]);
        const double clipped =
            std::clamp(ratio, 1.0 - options.clip_range, 1.0 + options.clip_range);
        loss -= std::min(ratio * advantages[i], clipped * advantages[i]);
        if (options.kl_coefficient > 0) {
          const double below = Logprob(ref_norm, ref_head, t, k) - logprob;
          loss += options.kl_coefficient * (std::exp(below) - 1 - below);
        }
      }
    }
    return loss / tokens;
  }

  int hidden, vocab;
  std::mt19937_64 random;
  std::vector<float> norm, head;
  std::vector<Trajectory> trajectories;
};

/// Plain gradient descent of rate 1: a step moves the master copies by the gradient itself.
GrpoOptions PlainDescent() {
  GrpoOptions options;
  options.learning_rate = 1;
  options.momentum = 0;
  options.max_grad_norm = 0;
  options.norm_eps = kNormEps;
  options.threads = 2;
  return options;
}

/// Compares the gradient that a step applied to that of central differences of Toy::Loss.
void ExpectExactGradient(const Toy& toy, const GrpoOptions& options) {
  HeadGrpo grpo(options, toy.norm, toy.head);
  const GrpoStats stats = grpo.Step(toy.trajectories);
  std::vector<double> n(toy.norm.begin(), toy.norm.end()), w(toy.head.begin(), toy.head.end());
  const auto ref_norm = n, ref_head = w;
  const auto loss = [&] { return toy.Loss(n, w, options, ref_norm, ref_head); };
  EXPECT_NEAR(stats.loss, loss(), 1e-6);
  double squares = 0;
  const auto expect = [&](double& parameter, double before, double after, const char* what) {
    const double kept = parameter, delta = 1e-5;
    parameter = kept + delta;
    const double above = loss();
    parameter = kept - delta;
    const double below = loss();
    parameter = kept;
    const double expected = (above - below) / (2 * delta);
    squares += expected * expected;
    // The master copy has float32 steps of about 1e-7 at 1.
    EXPECT_NEAR(before - after, expected, 1e-6 + 1e-4 * std::abs(expected)) << what;
  };
  for (size_t i = 0; i < n.size(); ++i) expect(n[i], toy.norm[i], grpo.norm()[i], "norm");
  for (size_t i = 0; i < w.size(); ++i) expect(w[i], toy.head[i], grpo.head()[i], "head");
  EXPECT_NEAR(stats.grad_norm, std::sqrt(squares), 1e-5 + 1e-4 * std::sqrt(squares));
}

TEST(HeadGrpoTest, GradientIsExact) { ExpectExactGradient(Toy(6, 11, 2, 3, 2), PlainDescent()); }

TEST(HeadGrpoTest, GradientIsExactAtOtherTemperatures) {
  ExpectExactGradient(Toy(6, 11, 2, 3, 2, 2, 0.6f), PlainDescent());
  ExpectExactGradient(Toy(6, 11, 2, 3, 2, 3, 1.5f), PlainDescent());
}

TEST(HeadGrpoTest, GradientIsExactWhereRatiosAreClipped) {
  Toy toy(6, 11, 3, 4, 3, 4);
  toy.Record(0.5);
  HeadGrpo grpo(PlainDescent(), toy.norm, toy.head);
  const double fraction = grpo.Step(toy.trajectories).clip_fraction;
  EXPECT_GT(fraction, 0.05);
  EXPECT_LT(fraction, 0.6);
  ExpectExactGradient(toy, PlainDescent());
}

TEST(HeadGrpoTest, KlTermHoldsThePolicyNearItsStart) {
  Toy toy(6, 11, 2, 3, 2, 5);
  GrpoOptions options = PlainDescent();
  options.kl_coefficient = 0.5f;
  // At the reference itself the term and its gradient are nothing.
  ExpectExactGradient(toy, options);
  // Away from it, with no other signal, it leads back.
  HeadGrpo grpo(options, toy.norm, toy.head);
  EXPECT_NEAR(grpo.Step(toy.trajectories).kl_reference, 0, 1e-9);
  for (Trajectory& t : toy.trajectories) t.reward = 1;
  const double away = grpo.Step(toy.trajectories).kl_reference;
  EXPECT_GT(away, 1e-3);
  double kl = away;
  for (int i = 0; i < 20; ++i) kl = grpo.Step(toy.trajectories).kl_reference;
  EXPECT_LT(kl, away / 2);
}

TEST(HeadGrpoTest, AdamsFirstStepIsTheLearningRateInTheGradientsDirection) {
  Toy toy(6, 11, 2, 3, 2);
  GrpoOptions options = PlainDescent();
  HeadGrpo plain(options, toy.norm, toy.head);
  plain.Step(toy.trajectories);
  options.optimizer = GrpoOptions::Optimizer::kAdam;
  options.learning_rate = 1e-3f;
  HeadGrpo adam(options, toy.norm, toy.head);
  adam.Step(toy.trajectories);
  int compared = 0;
  for (size_t i = 0; i < toy.head.size(); ++i) {
    const float gradient = toy.head[i] - plain.head()[i];
    if (std::abs(gradient) < 1e-4) continue;
    EXPECT_NEAR(toy.head[i] - adam.head()[i], std::copysign(1e-3, gradient), 2e-6);
    ++compared;
  }
  EXPECT_GT(compared, 30);
}

TEST(HeadGrpoTest, GradientNormIsLimited) {
  Toy toy(6, 11, 2, 3, 2);
  GrpoOptions options = PlainDescent();
  options.max_grad_norm = 0.01f;
  HeadGrpo grpo(options, toy.norm, toy.head);
  EXPECT_GT(grpo.Step(toy.trajectories).grad_norm, 0.01);
  double squares = 0;
  for (size_t i = 0; i < toy.norm.size(); ++i) squares += std::pow(toy.norm[i] - grpo.norm()[i], 2);
  for (size_t i = 0; i < toy.head.size(); ++i) squares += std::pow(toy.head[i] - grpo.head()[i], 2);
  EXPECT_NEAR(std::sqrt(squares), 0.01, 1e-4);
}

TEST(HeadGrpoTest, StatsWithoutLag) {
  Toy toy(16, 50, 3, 4, 5);
  for (Trajectory& t : toy.trajectories)
    if (t.group_id == 11) t.reward = 0.5;
  toy.trajectories[0].outcome = Outcome::kAborted;
  toy.trajectories[1].reward = std::nan("");
  double reward = 0;
  int64_t tokens = 0;
  for (size_t i = 2; i < toy.trajectories.size(); ++i) {
    reward += toy.trajectories[i].reward / 10;
    tokens += static_cast<int64_t>(toy.trajectories[i].completion.size());
  }
  HeadGrpo grpo(PlainDescent(), toy.norm, toy.head);
  const GrpoStats stats = grpo.Step(toy.trajectories);
  EXPECT_EQ(stats.trajectories, 10);
  EXPECT_EQ(stats.groups, 3);
  EXPECT_EQ(stats.groups_with_signal, 2);
  EXPECT_EQ(stats.tokens, tokens);
  EXPECT_NEAR(stats.reward_mean, reward, 1e-12);
  EXPECT_NEAR(stats.ratio_mean, 1, 1e-5);
  EXPECT_NEAR(stats.kl, 0, 1e-9);
  EXPECT_EQ(stats.clip_fraction, 0);
  EXPECT_GT(stats.entropy, 0);
  EXPECT_LT(stats.entropy, std::log(50));
}

TEST(HeadGrpoTest, EntropyOfAFlatPolicy) {
  Toy toy(4, 3000, 1, 2, 2);  // more than one block of the vocabulary
  std::fill(toy.head.begin(), toy.head.end(), 0.0f);
  HeadGrpo grpo(PlainDescent(), toy.norm, toy.head);
  EXPECT_NEAR(grpo.Step(toy.trajectories).entropy, std::log(3000), 1e-6);
}

TEST(HeadGrpoTest, ManyTokensAndBlocksGiveTheSameOnAnyNumberOfThreads) {
  Toy toy(16, 2500, 5, 8, 10);  // 540 tokens: three chunks of three blocks
  GrpoOptions options = PlainDescent();
  options.threads = 1;
  HeadGrpo one(options, toy.norm, toy.head);
  options.threads = 3;
  HeadGrpo three(options, toy.norm, toy.head);
  const GrpoStats a = one.Step(toy.trajectories), b = three.Step(toy.trajectories);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
  EXPECT_NEAR(a.kl, 0, 1e-9);
  EXPECT_TRUE(std::equal(one.head().begin(), one.head().end(), three.head().begin()));
  EXPECT_TRUE(std::equal(one.norm().begin(), one.norm().end(), three.norm().begin()));
}

TEST(HeadGrpoTest, WithoutSignalNothingMoves) {
  Toy toy(6, 11, 2, 3, 2);
  for (Trajectory& t : toy.trajectories) t.reward = 1;
  HeadGrpo grpo(PlainDescent(), toy.norm, toy.head);
  const GrpoStats stats = grpo.Step(toy.trajectories);
  EXPECT_EQ(stats.groups_with_signal, 0);
  EXPECT_EQ(stats.grad_norm, 0);
  EXPECT_NEAR(stats.ratio_mean, 1, 1e-5);
  EXPECT_TRUE(std::equal(toy.head.begin(), toy.head.end(), grpo.head().begin()));
  EXPECT_EQ(grpo.Step({}).trajectories, 0);
  EXPECT_EQ(grpo.Step({}).ratio_mean, 1);
}

TEST(HeadGrpoTest, WhatIsPublishedIsTheMasterRounded) {
  Toy toy(6, 11, 2, 3, 2);
  HeadGrpo grpo(PlainDescent(), toy.norm, toy.head);
  grpo.Step(toy.trajectories);
  for (size_t i = 0; i < toy.head.size(); ++i)
    EXPECT_EQ(grpo.head_bf16()[i], FloatToBf16(grpo.head()[i]));
  for (size_t i = 0; i < toy.norm.size(); ++i)
    EXPECT_EQ(grpo.norm_bf16()[i], FloatToBf16(grpo.norm()[i]));
}

TEST(HeadGrpoTest, BadTrajectoriesAreNamed) {
  const auto error_of = [](const std::function<void(Trajectory&)>& spoil) -> std::string {
    Toy toy(6, 11, 2, 3, 2);
    spoil(toy.trajectories[1]);
    HeadGrpo grpo(PlainDescent(), toy.norm, toy.head);
    try {
      grpo.Step(toy.trajectories);
    } catch (const Error& error) {
      EXPECT_TRUE(std::equal(toy.head.begin(), toy.head.end(), grpo.head().begin()));
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(
      error_of([](Trajectory& t) { t.hidden.clear(); }),
      "trajectory of prompt p0, sample 1: has 0 hidden values; expected 3 x 6 (ask for hidden "
      "states when submitting)");
  EXPECT_NE(error_of([](Trajectory& t) { t.logprob.pop_back(); }).find("2 log-probabilities"),
            std::string::npos);
  EXPECT_NE(error_of([](Trajectory& t) { t.completion[0] = 11; }).find("outside [0, 11)"),
            std::string::npos);
  EXPECT_NE(error_of([](Trajectory& t) {
              t.hidden[2] = std::numeric_limits<float>::quiet_NaN();
            }).find("gradient's norm is"),
            std::string::npos);
  EXPECT_NE(error_of([](Trajectory& t) {
              t.logprob[0] = -std::numeric_limits<float>::infinity();
            }).find("log-probability -inf at token 0"),
            std::string::npos);
}

TEST(GroupAdvantagesTest, NormalisedWithinTheGroup) {
  std::vector<Trajectory> trajectories(6);
  const double rewards[] = {1, 3, 5, 7, 7, 9};
  for (size_t i = 0; i < 6; ++i) {
    trajectories[i].completion = {0};
    trajectories[i].reward = rewards[i];
    trajectories[i].group_id = i < 3 ? 1 : i < 5 ? 2 : 3;
  }
  const double deviation = std::sqrt(8.0 / 3);
  const std::vector<double> expected = {
      -2 / (deviation + 1e-4), 0, 2 / (deviation + 1e-4), 0, 0, 0};
  const auto advantages = GroupAdvantages(trajectories);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(advantages[i], expected[i], 1e-12) << i;
  trajectories[2].outcome = Outcome::kScoringFailed;
  const auto without = GroupAdvantages(trajectories);
  EXPECT_NEAR(without[0], -1 / (1 + 1e-4), 1e-12);
  EXPECT_NEAR(without[1], 1 / (1 + 1e-4), 1e-12);
  EXPECT_EQ(without[2], 0);
}

/// Draws one token from the published policy for a fixed hidden state.
int32_t Draw(const HeadGrpo& grpo, const std::vector<float>& hidden, int vocab,
             std::mt19937_64& random, float* logprob) {
  double squares = 0;
  for (float h : hidden) squares += h * h;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden.size()) + kNormEps);
  std::vector<double> weights(static_cast<size_t>(vocab));
  double sum = 0;
  for (int v = 0; v < vocab; ++v) {
    double logit = 0;
    for (size_t i = 0; i < hidden.size(); ++i)
      logit += Bf16ToFloat(grpo.head_bf16()[v * hidden.size() + i]) *
               Bf16ToFloat(grpo.norm_bf16()[i]) * hidden[i] * scale;
    sum += weights[v] = std::exp(logit);
  }
  const int32_t token = std::discrete_distribution<int32_t>(weights.begin(), weights.end())(random);
  *logprob = static_cast<float>(std::log(weights[token] / sum));
  return token;
}

TEST(HeadGrpoTest, RewardRisesOnABandit) {
  // Two states with another best arm each.
  Toy toy(8, 20, 0, 0, 0);
  const int32_t best[] = {3, 17};
  std::vector<std::vector<float>> states(2);
  for (auto& state : states)
    for (int i = 0; i < 8; ++i) state.push_back(static_cast<float>(toy.Normal()));
  for (const auto optimizer : {GrpoOptions::Optimizer::kSgd, GrpoOptions::Optimizer::kAdam}) {
    GrpoOptions options;
    options.optimizer = optimizer;
    options.learning_rate = optimizer == GrpoOptions::Optimizer::kSgd ? 0.3f : 0.03f;
    HeadGrpo grpo(options, toy.norm, toy.head);
    std::vector<double> rewards;
    for (int update = 0; update < 60; ++update) {
      std::vector<Trajectory> batch;
      for (uint64_t group = 0; group < 2; ++group) {
        for (int sample = 0; sample < 16; ++sample) {
          Trajectory t;
          t.group_id = group;
          t.hidden = states[group];
          t.logprob.resize(1);
          t.completion = {Draw(grpo, states[group], 20, toy.random, t.logprob.data())};
          t.reward = t.completion[0] == best[group] ? 1 : 0;
          batch.push_back(t);
        }
      }
      const GrpoStats stats = grpo.Step(batch);
      EXPECT_NEAR(stats.kl, 0, 1e-6);
      rewards.push_back(stats.reward_mean);
    }
    const auto mean = [&](size_t from) {
      return (rewards[from] + rewards[from + 1] + rewards[from + 2] + rewards[from + 3]) / 4;
    };
    EXPECT_LT(mean(0), 0.4);
    EXPECT_GT(mean(56), 0.9);
  }
}

}  // namespace
}  // namespace rollcast
