#include "engine/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace rollcast {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

/// theta^(2i / dim), the wavelength of pair i over 2 pi.
float PairScale(const RopeParameters& p, int i) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(p.rotary_dim);
  return std::pow(static_cast<float>(p.theta), exponent);
}

/// Low frequencies are divided by the factor, high ones kept, those between blended
/// (Llama 3.1's reference code).
float Llama3Frequency(const RopeParameters& p, float inv_freq) {
  const auto factor = static_cast<float>(p.factor);
  const float wavelength = static_cast<float>(kTwoPi) / inv_freq;
  if (wavelength < static_cast<float>(p.original_context / p.high_freq_factor)) return inv_freq;
  if (wavelength > static_cast<float>(p.original_context / p.low_freq_factor))
    return inv_freq / factor;
  const float smooth = (static_cast<float>(p.original_context) / wavelength -
                        static_cast<float>(p.low_freq_factor)) /
                       static_cast<float>(p.high_freq_factor - p.low_freq_factor);
  return (1 - smooth) * inv_freq / factor + smooth * inv_freq;
}

/// The pair index (a real number) whose wave turns `rotations` times within the original context
/// (YaRN, arXiv 2309.00071).
double YarnPair(const RopeParameters& p, double rotations) {
  return p.rotary_dim * std::log(p.original_context / (rotations * kTwoPi)) /
         (2 * std::log(p.theta));
}

double YarnMscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double YarnAttentionFactor(const RopeParameters& p) {
  if (p.attention_factor != 0) return p.attention_factor;
  if (p.mscale != 0 && p.mscale_all_dim != 0)
    return YarnMscale(p.factor, p.mscale) / YarnMscale(p.factor, p.mscale_all_dim);
  return YarnMscale(p.factor, 1);
}

void MakeYarn(const RopeParameters& p, RopeConfig& rope) {
  double low = YarnPair(p, p.beta_fast);
  double high = YarnPair(p, p.beta_slow);
  if (p.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, p.rotary_dim - 1.0);
  if (low == high) high += 0.001;  // a ramp of no width
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    const float scale = PairScale(p, static_cast<int>(i));
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
    const float keep = 1 - ramp;
    rope.inv_freq[i] =
        1.0f / (static_cast<float>(p.factor) * scale) * (1 - keep) + 1.0f / scale * keep;
  }
  rope.attention_factor = static_cast<float>(YarnAttentionFactor(p));
}

}  // namespace

RopeConfig MakeRope(const RopeParameters& p) {
  RC_CHECK(p.rotary_dim >= 2 && p.rotary_dim % 2 == 0, p.rotary_dim);
  RopeConfig rope;
  rope.rotary_dim = p.rotary_dim;
  rope.inv_freq.resize(static_cast<size_t>(p.rotary_dim / 2));
  if (p.type == RopeParameters::Type::kYarn) {
    MakeYarn(p, rope);
    return rope;
  }
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    float inv_freq = 1.0f / PairScale(p, static_cast<int>(i));
    if (p.type == RopeParameters::Type::kLinear) inv_freq /= static_cast<float>(p.factor);
    if (p.type == RopeParameters::Type::kLlama3) inv_freq = Llama3Frequency(p, inv_freq);
    rope.inv_freq[i] = inv_freq;
  }
  return rope;
}

}  // namespace rollcast
