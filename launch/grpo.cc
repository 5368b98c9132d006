#include "launch/grpo.h"

#include <cblas.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "kernels/check.h"
#include "kernels/float_convert.h"

namespace rollcast {

namespace {

// Rows of the head that are taken at a time: small enough for the second-level cache, and the unit
// of work and of summation order, whatever the number of threads.
constexpr int64_t kBlockRows = 1024;
// Tokens whose probabilities are held at a time: [256, vocab] float32.
constexpr int64_t kChunkTokens = 256;
constexpr double kAdvantageEps = 1e-4;

float Widen(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

void Round(std::span<const float> from, std::span<uint16_t> to) {
  RC_CHECK(ConvertFloats(from.data(), DType::kF32, to.data(), DType::kBF16, from.size()),
           "a parameter is too large for bfloat16");
}

bool Counts(const Trajectory& t) {
  return t.outcome == Outcome::kCompleted && !t.completion.empty() && std::isfinite(t.reward);
}

/// Greedy decoding records log-probabilities at temperature 1.
double Temperature(const Trajectory& t) {
  return t.sampling.temperature < 1e-6f ? 1.0 : static_cast<double>(t.sampling.temperature);
}

}  // namespace

/// One sampled token: a row of every matrix here.
struct HeadGrpo::Row {
  int32_t trajectory = 0, position = 0;
  int32_t token = 0;
  double advantage = 0;
  double recorded = 0;   // log-probability, from the engine
  double logprob = 0;    // the same under the present parameters
  double reference = 0;  // the same under the reference parameters
  double entropy = 0;
  double log_sum_exp = 0;
  double coefficient = 0;  // d loss / d logprob
};

/// Buffers of kChunkTokens rows.
struct HeadGrpo::Chunk {
  std::vector<float> normed;         // [tokens, hidden] h / rms(h) / temperature
  std::vector<float> input;          // [tokens, hidden] norm * normed
  std::vector<float> probabilities;  // [blocks][tokens, block rows] exp(logit - block_max)
  std::vector<float> block_max;      // [blocks, tokens]
  std::vector<double> block_sum;     // [blocks, tokens] of the exponentials
  std::vector<double> block_logits;  // [blocks, tokens] sum of exponential * (logit - block_max)
  std::vector<float> target_logit;   // [tokens]
};

std::vector<double> GroupAdvantages(std::span<const Trajectory> trajectories) {
  struct Sums {
    double count = 0, sum = 0, low = 0, high = 0;
  };
  std::unordered_map<uint64_t, Sums> groups;
  for (const Trajectory& t : trajectories) {
    if (!Counts(t)) continue;
    Sums& g = groups.try_emplace(t.group_id, Sums{0, 0, t.reward, t.reward}).first->second;
    g.count += 1;
    g.sum += t.reward;
    g.low = std::min(g.low, t.reward);
    g.high = std::max(g.high, t.reward);
  }
  std::unordered_map<uint64_t, double> squares;
  for (const Trajectory& t : trajectories) {
    if (!Counts(t)) continue;
    const Sums& g = groups.at(t.group_id);
    const double delta = t.reward - g.sum / g.count;
    squares[t.group_id] += delta * delta;
  }
  std::vector<double> advantages;
  for (const Trajectory& t : trajectories) {
    if (!Counts(t) || groups.at(t.group_id).low == groups.at(t.group_id).high) {
      advantages.push_back(0);
      continue;
    }
    const Sums& g = groups.at(t.group_id);
    const double deviation = std::sqrt(squares.at(t.group_id) / g.count);
    advantages.push_back((t.reward - g.sum / g.count) / (deviation + kAdvantageEps));
  }
  return advantages;
}

HeadGrpo::HeadGrpo(const GrpoOptions& options, std::span<const float> norm,
                   std::span<const float> head)
    : options_(options),
      hidden_(static_cast<int64_t>(norm.size())),
      norm_(norm.begin(), norm.end()),
      head_(head.begin(), head.end()),
      norm_bf16_(norm.size()),
      head_bf16_(head.size()),
      gradient_(head.size()),
      norm_first_(norm.size()),
      head_first_(head.size()) {
  RC_CHECK(hidden_ > 0 && !head.empty() && head.size() % norm.size() == 0, "norm has ", norm.size(),
           " elements, head ", head.size());
  vocab_ = static_cast<int64_t>(head.size()) / hidden_;
  blocks_ = (vocab_ + kBlockRows - 1) / kBlockRows;
  threads_ = options.threads > 0
                 ? options.threads
                 : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  // The blocks are what runs side by side; OpenBLAS's own threads would only get in their way.
  openblas_set_num_threads(1);
  if (options.optimizer == GrpoOptions::Optimizer::kAdam) {
    norm_second_.resize(norm.size());
    head_second_.resize(head.size());
  }
  Round(norm_, norm_bf16_);
  Round(head_, head_bf16_);
  if (options.kl_coefficient > 0) {
    reference_norm_ = norm_bf16_;
    reference_head_ = head_bf16_;
  }
}

template <class F>
void HeadGrpo::ForBlocks(F&& f) const {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (int64_t block; (block = next.fetch_add(1)) < blocks_;) f(block);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < std::min<int64_t>(threads_, blocks_); ++i) helpers.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

int64_t HeadGrpo::BlockRows(int64_t block) const {
  return std::min(kBlockRows, vocab_ - block * kBlockRows);
}

GrpoStats HeadGrpo::Step(std::span<const Trajectory> trajectories) {
  GrpoStats stats;
  std::vector<Row> rows = CollectRows(trajectories, stats);
  if (rows.empty()) return stats;

  std::fill(gradient_.begin(), gradient_.end(), 0.0f);
  bool signal = false;
  Chunk chunk;
  for (size_t begin = 0; begin < rows.size(); begin += kChunkTokens) {
    const std::span<Row> part =
        std::span(rows).subspan(begin, std::min<size_t>(kChunkTokens, rows.size() - begin));
    if (!reference_head_.empty()) {
      FillChunk(trajectories, part, reference_norm_, chunk);
      Forward(part, reference_head_, chunk);
      for (Row& row : part) row.reference = row.logprob;
    }
    FillChunk(trajectories, part, norm_bf16_, chunk);
    Forward(part, head_bf16_, chunk);
    bool part_signal = false;
    for (Row& row : part) {
      stats.loss += Loss(row, static_cast<double>(rows.size()), stats);
      part_signal |= row.coefficient != 0;
    }
    if (part_signal) AccumulateGradient(part, chunk);
    signal |= part_signal;
  }
  const double n = static_cast<double>(rows.size());
  for (double* mean :
       {&stats.ratio_mean, &stats.clip_fraction, &stats.kl, &stats.kl_reference, &stats.entropy})
    *mean /= n;
  if (!signal) return stats;

  std::vector<float> norm_gradient(norm_.size());
  stats.grad_norm = FinishGradient(norm_gradient);
  if (!std::isfinite(stats.grad_norm))
    throw Error(StrCat("the gradient's norm is ", stats.grad_norm,
                       "; the batch has hidden states or log-probabilities that are not finite, or "
                       "the learning rate is too high"));
  const float scale = options_.max_grad_norm > 0 && stats.grad_norm > options_.max_grad_norm
                          ? static_cast<float>(options_.max_grad_norm / stats.grad_norm)
                          : 1.0f;
  ++steps_;
  Update(norm_, norm_gradient, scale, norm_first_, norm_second_, norm_bf16_);
  ForBlocks([&](int64_t block) {
    const auto at = [&](auto& v) {
      return v.empty() ? std::span(v)
                       : std::span(v).subspan(static_cast<size_t>(block * kBlockRows * hidden_),
                                              static_cast<size_t>(BlockRows(block) * hidden_));
    };
    Update(at(head_), at(gradient_), scale, at(head_first_), at(head_second_), at(head_bf16_));
  });
  return stats;
}

std::vector<HeadGrpo::Row> HeadGrpo::CollectRows(std::span<const Trajectory> trajectories,
                                                 GrpoStats& stats) const {
  const std::vector<double> advantages = GroupAdvantages(trajectories);
  std::unordered_map<uint64_t, bool> groups;  // has signal
  std::vector<Row> rows;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    const Trajectory& t = trajectories[i];
    if (!Counts(t)) continue;
    const size_t length = t.completion.size();
    const auto describe = [&] {
      return StrCat("trajectory of prompt ", t.prompt_id, ", sample ", t.sample_index, ": ");
    };
    if (t.hidden.size() != length * static_cast<size_t>(hidden_))
      throw Error(StrCat(describe(), "has ", t.hidden.size(), " hidden values; expected ", length,
                         " x ", hidden_, " (ask for hidden states when submitting)"));
    if (t.logprob.size() != length)
      throw Error(StrCat(describe(), "has ", t.logprob.size(), " log-probabilities for ", length,
                         " tokens"));
    ++stats.trajectories;
    stats.reward_mean += t.reward;
    groups[t.group_id] |= advantages[i] != 0;
    for (size_t k = 0; k < length; ++k) {
      if (t.completion[k] < 0 || t.completion[k] >= vocab_)
        throw Error(
            StrCat(describe(), "has token id ", t.completion[k], ", outside [0, ", vocab_, ")"));
      if (!std::isfinite(t.logprob[k]))
        throw Error(StrCat(describe(), "has log-probability ", t.logprob[k], " at token ", k));
      rows.push_back({.trajectory = static_cast<int32_t>(i),
                      .position = static_cast<int32_t>(k),
                      .token = t.completion[k],
                      .advantage = advantages[i],
                      .recorded = t.logprob[k]});
    }
  }
  stats.tokens = static_cast<int64_t>(rows.size());
  stats.groups = static_cast<int>(groups.size());
  for (const auto& [id, signal] : groups) stats.groups_with_signal += signal;
  if (stats.trajectories > 0) stats.reward_mean /= stats.trajectories;
  if (!rows.empty()) stats.ratio_mean = 0;
  // Rows without signal need no backward pass: chunks of nothing else are done after the forward.
  std::stable_partition(rows.begin(), rows.end(),
                        [](const Row& row) { return row.advantage != 0; });
  return rows;
}

void HeadGrpo::FillChunk(std::span<const Trajectory> trajectories, std::span<const Row> rows,
                         std::span<const uint16_t> norm, Chunk& chunk) const {
  chunk.normed.resize(rows.size() * static_cast<size_t>(hidden_));
  chunk.input.resize(chunk.normed.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    const Trajectory& t = trajectories[rows[r].trajectory];
    const float* h = t.hidden.data() + static_cast<int64_t>(rows[r].position) * hidden_;
    double squares = 0;
    for (int64_t i = 0; i < hidden_; ++i) squares += static_cast<double>(h[i]) * h[i];
    const double rms = std::sqrt(squares / static_cast<double>(hidden_) + options_.norm_eps);
    const float scale = static_cast<float>(1 / (rms * Temperature(t)));
    float* normed = chunk.normed.data() + static_cast<int64_t>(r) * hidden_;
    float* input = chunk.input.data() + static_cast<int64_t>(r) * hidden_;
    for (int64_t i = 0; i < hidden_; ++i) {
      normed[i] = h[i] * scale;
      input[i] = normed[i] * Widen(norm[i]);
    }
  }
}

void HeadGrpo::Forward(std::span<Row> rows, std::span<const uint16_t> head, Chunk& chunk) const {
  const int64_t n = static_cast<int64_t>(rows.size());
  chunk.probabilities.resize(static_cast<size_t>(n * blocks_ * kBlockRows));
  for (auto* v : {&chunk.block_sum, &chunk.block_logits})
    v->resize(static_cast<size_t>(n * blocks_));
  chunk.block_max.resize(static_cast<size_t>(n * blocks_));
  chunk.target_logit.resize(rows.size());
  ForBlocks([&](int64_t block) {
    const int64_t first = block * kBlockRows, count = BlockRows(block);
    std::vector<float> weights(static_cast<size_t>(count * hidden_));
    const uint16_t* bits = head.data() + first * hidden_;
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = Widen(bits[i]);
    float* logits = chunk.probabilities.data() + first * n;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(n),
                static_cast<int>(count), static_cast<int>(hidden_), 1.0f, chunk.input.data(),
                static_cast<int>(hidden_), weights.data(), static_cast<int>(hidden_), 0.0f, logits,
                static_cast<int>(count));
    for (int64_t r = 0; r < n; ++r) {
      float* row = logits + r * count;
      const int64_t target = rows[r].token - first;
      if (target >= 0 && target < count) chunk.target_logit[r] = row[target];
      const float max = *std::max_element(row, row + count);
      double sum = 0, weighted = 0;
      for (int64_t v = 0; v < count; ++v) {
        const float below = row[v] - max;
        row[v] = std::exp(below);
        sum += row[v];
        weighted += row[v] * below;
      }
      chunk.block_max[block * n + r] = max;
      chunk.block_sum[block * n + r] = sum;
      chunk.block_logits[block * n + r] = weighted;
    }
  });
  for (int64_t r = 0; r < n; ++r) {
    float max = chunk.block_max[r];
    for (int64_t b = 1; b < blocks_; ++b) max = std::max(max, chunk.block_max[b * n + r]);
    double sum = 0, weighted = 0;  // of exp(logit - max), and of that times (logit - max)
    for (int64_t b = 0; b < blocks_; ++b) {
      const double below = static_cast<double>(chunk.block_max[b * n + r]) - max;
      const double scale = std::exp(below);
      sum += scale * chunk.block_sum[b * n + r];
      weighted += scale * (chunk.block_logits[b * n + r] + below * chunk.block_sum[b * n + r]);
    }
    rows[r].log_sum_exp = max + std::log(sum);
    rows[r].logprob = chunk.target_logit[r] - rows[r].log_sum_exp;
    rows[r].entropy = std::log(sum) - weighted / sum;
  }
}

double HeadGrpo::Loss(Row& row, double num_tokens, GrpoStats& stats) const {
  // PPO's clipped surrogate (Schulman et al. 2017) with GRPO's advantage (Shao et al. 2024). Where
  // the clipped side is the lesser one, the token has no gradient.
  const double change = row.logprob - row.recorded;
  const double ratio = std::exp(change);
  const double clipped = std::clamp(ratio, 1.0 - options_.clip_range, 1.0 + options_.clip_range);
  const bool cut = clipped * row.advantage < ratio * row.advantage;
  double loss = -(cut ? clipped : ratio) * row.advantage;
  double coefficient = cut ? 0 : -ratio * row.advantage;
  stats.ratio_mean += ratio;
  stats.clip_fraction += cut;
  stats.kl += ratio - 1 - change;
  stats.entropy += row.entropy;
  if (options_.kl_coefficient > 0) {
    // k3 (Schulman, "Approximating KL divergence", 2020).
    const double below = row.reference - row.logprob;
    const double kl = std::exp(below) - 1 - below;
    stats.kl_reference += kl;
    loss += options_.kl_coefficient * kl;
    coefficient += options_.kl_coefficient * (1 - std::exp(below));
  }
  row.coefficient = coefficient / num_tokens;
  return loss / num_tokens;
}

/// Adds this chunk's part of G[v, i] = sum over tokens of d loss / d logit[v] * normed[i], of which
/// both gradients are made: head gradient = norm * G, norm gradient = sum over v of head * G.
void HeadGrpo::AccumulateGradient(std::span<const Row> rows, Chunk& chunk) {
  const int64_t n = static_cast<int64_t>(rows.size());
  ForBlocks([&](int64_t block) {
    const int64_t first = block * kBlockRows, count = BlockRows(block);
    float* matrix = chunk.probabilities.data() + first * n;
    for (int64_t r = 0; r < n; ++r) {
      // d logprob / d logit[v] = [v is the token] - probability.
      float* row = matrix + r * count;
      const float scale = static_cast<float>(
          -rows[r].coefficient * std::exp(chunk.block_max[block * n + r] - rows[r].log_sum_exp));
      for (int64_t v = 0; v < count; ++v) row[v] *= scale;
      const int64_t target = rows[r].token - first;
      if (target >= 0 && target < count) row[target] += static_cast<float>(rows[r].coefficient);
    }
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, static_cast<int>(count),
                static_cast<int>(hidden_), static_cast<int>(n), 1.0f, matrix,
                static_cast<int>(count), chunk.normed.data(), static_cast<int>(hidden_), 1.0f,
                gradient_.data() + first * hidden_, static_cast<int>(hidden_));
  });
}

/// Turns G into the head's gradient, fills the norm's, and returns the norm of both together.
double HeadGrpo::FinishGradient(std::vector<float>& norm_gradient) {
  std::vector<double> norm_parts(static_cast<size_t>(blocks_ * hidden_));
  std::vector<double> squares(static_cast<size_t>(blocks_));
  ForBlocks([&](int64_t block) {
    double* part = norm_parts.data() + block * hidden_;
    for (int64_t v = 0; v < BlockRows(block); ++v) {
      const int64_t at = (block * kBlockRows + v) * hidden_;
      for (int64_t i = 0; i < hidden_; ++i) {
        float& g = gradient_[at + i];
        part[i] += static_cast<double>(Widen(head_bf16_[at + i])) * g;
        g *= Widen(norm_bf16_[i]);
        squares[block] += static_cast<double>(g) * g;
      }
    }
  });
  double total = 0;
  for (double s : squares) total += s;
  for (int64_t i = 0; i < hidden_; ++i) {
    double sum = 0;
    for (int64_t b = 0; b < blocks_; ++b) sum += norm_parts[b * hidden_ + i];
    norm_gradient[i] = static_cast<float>(sum);
    total += sum * sum;
  }
  return std::sqrt(total);
}

/// `second` is empty with SGD.
void HeadGrpo::Update(std::span<float> parameters, std::span<const float> gradient, float scale,
                      std::span<float> first, std::span<float> second,
                      std::span<uint16_t> rounded) const {
  if (second.empty()) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      first[i] = options_.momentum * first[i] + scale * gradient[i];
      parameters[i] -= options_.learning_rate * first[i];
    }
  } else {
    // Kingma and Ba 2015, with the corrections of both moments' start at zero folded together.
    const double t = static_cast<double>(steps_);
    const float correct1 = static_cast<float>(1 - std::pow(options_.beta1, t));
    const float correct2 = static_cast<float>(std::sqrt(1 - std::pow(options_.beta2, t)));
    const float rate = options_.learning_rate / correct1;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const float g = scale * gradient[i];
      first[i] = options_.beta1 * first[i] + (1 - options_.beta1) * g;
      second[i] = options_.beta2 * second[i] + (1 - options_.beta2) * g * g;
      parameters[i] -= rate * first[i] / (std::sqrt(second[i]) / correct2 + options_.eps);
    }
  }
  Round(parameters, rounded);
}

}  // namespace rollcast
