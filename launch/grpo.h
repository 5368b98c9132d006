// The mathematics of the reference trainer: GRPO on the final norm and the output head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rollout/trajectory.h"

namespace rollcast {

struct GrpoOptions {
  enum class Optimizer : uint8_t { kSgd, kAdam };

  Optimizer optimizer = Optimizer::kSgd;
  float learning_rate = 0.02f;
  float momentum = 0.9f;                           // SGD
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;  // Adam
  float max_grad_norm = 1.0f;                      // over both tensors; 0 = no limit
  float clip_range = 0.2f;                         // of the probability ratio
  float kl_coefficient = 0;                        // towards the policy at construction
  float norm_eps = 1e-5f;                          // the model's rms_norm_eps
  int threads = 0;                                 // 0 = one a processor
};

/// One Step. Means over tokens are over all tokens of the trajectories that counted.
struct GrpoStats {
  int trajectories = 0;        // completed, with a reward
  int groups = 0;              // of them
  int groups_with_signal = 0;  // whose rewards differ
  int64_t tokens = 0;
  double reward_mean = 0;
  double ratio_mean = 1;     // exp(recomputed - recorded log-probability)
  double clip_fraction = 0;  // tokens whose gradient the clip has cut off
  double kl = 0;             // k3 estimate of KL(recorded || recomputed): ~0 without policy lag
  double kl_reference = 0;   // k3 estimate of KL(policy || policy at construction), if asked for
  double entropy = 0;        // nats a token, at the sampling temperature
  double loss = 0;
  double grad_norm = 0;  // before the limit
};

/// Advantage of each trajectory within its group: (reward - mean) / (standard deviation + 1e-4);
/// 0 where all rewards of the group are equal.
std::vector<double> GroupAdvantages(std::span<const Trajectory> trajectories);

/// Trains what stands behind a frozen body: logits = head . (norm * h / rms(h)), with h the hidden
/// state before the final norm that each trajectory brings along. Master copies and optimizer state
/// are float32; the policy that is published, and whose gradient is taken, is their bfloat16
/// rounding. Results do not depend on the number of threads. Used from one thread.
class HeadGrpo {
 public:
  /// `norm` is [hidden], `head` [vocab, hidden].
  HeadGrpo(const GrpoOptions& options, std::span<const float> norm, std::span<const float> head);

  /// One optimizer step on the clipped policy-gradient objective, mean over tokens. Trajectories
  /// that are not completed, empty or without a reward are passed over; without any signal the
  /// parameters stay. Throws Error when a trajectory's hidden states or log-probabilities are
  /// missing, an id is outside the vocabulary, or the gradient is not finite (the parameters stay).
  GrpoStats Step(std::span<const Trajectory> trajectories);

  /// What to publish as "model.norm.weight" [hidden] and "lm_head.weight" [vocab, hidden].
  std::span<const uint16_t> norm_bf16() const { return norm_bf16_; }
  std::span<const uint16_t> head_bf16() const { return head_bf16_; }
  /// The master copies.
  std::span<const float> norm() const { return norm_; }
  std::span<const float> head() const { return head_; }

 private:
  struct Row;
  struct Chunk;

  std::vector<Row> CollectRows(std::span<const Trajectory> trajectories, GrpoStats& stats) const;
  void FillChunk(std::span<const Trajectory> trajectories, std::span<const Row> rows,
                 std::span<const uint16_t> norm, Chunk& chunk) const;
  void Forward(std::span<Row> rows, std::span<const uint16_t> head, Chunk& chunk) const;
  double Loss(Row& row, double num_tokens, GrpoStats& stats) const;
  void AccumulateGradient(std::span<const Row> rows, Chunk& chunk);
  double FinishGradient(std::vector<float>& norm_gradient);
  void Update(std::span<float> parameters, std::span<const float> gradient, float scale,
              std::span<float> first, std::span<float> second, std::span<uint16_t> rounded) const;
  /// Calls f(block) for each block of vocabulary rows, on all threads.
  template <class F>
  void ForBlocks(F&& f) const;
  int64_t BlockRows(int64_t block) const;

  GrpoOptions options_;
  int64_t hidden_ = 0, vocab_ = 0, blocks_ = 0;
  int threads_ = 1;
  int64_t steps_ = 0;
  std::vector<float> norm_, head_;
  std::vector<uint16_t> norm_bf16_, head_bf16_;
  std::vector<uint16_t> reference_norm_, reference_head_;                   // with a KL term
  std::vector<float> gradient_;                                             // [vocab, hidden]
  std::vector<float> norm_first_, norm_second_, head_first_, head_second_;  // moments
};

}  // namespace rollcast
