#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace coppice {
namespace {

// Llama 3.1: frequencies whose wavelength exceeds the original context over low_freq_factor are divided by factor, those below the
// original context over high_freq_factor stay, and those between are blended.
double ScaleLlama3(double frequency, const RopeConfig& rope) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double turns = rope.original_max_position / wavelength;  // in the original context
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  if (turns > rope.high_freq_factor) return frequency;
  const double keep = (turns - rope.low_freq_factor) / (double{rope.high_freq_factor} - rope.low_freq_factor);
  return (1 - keep) * frequency / rope.factor + keep * frequency;
}

// The dimension whose frequency makes `turns` turns in the original context.
double DimensionOfTurns(double turns, const RopeConfig& rope, int32_t rotary_dim) {
  return rotary_dim * std::log(rope.original_max_position / (turns * 2 * std::numbers::pi)) / (2 * std::log(double{rope.theta}));
}

// YaRN, "NTK-by-parts": pairs below the range of dimensions keep their frequency, those above are divided, a ramp between.
struct YarnRange {
  YarnRange(const RopeConfig& rope, int32_t rotary_dim)
      : low(DimensionOfTurns(rope.beta_fast, rope, rotary_dim)), high(DimensionOfTurns(rope.beta_slow, rope, rotary_dim)) {
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, rotary_dim - 1.0);
    if (low == high) high += 0.001;
  }
  double Scale(double frequency, size_t pair, double factor) const {
    const double divided = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
    return frequency / factor * divided + frequency * (1 - divided);
  }
  double low, high;
};

}  // namespace

std::string FrequencyChoice(const RopeConfig& rope, int32_t max_context) {
  if (max_context <= rope.original_max_position) return "";
  if (rope.scaling == RopeScaling::kDynamic) return "-dynamic" + std::to_string(max_context);
  return rope.long_divisors.empty() ? "" : "-long";
}

std::vector<float> InverseFrequencies(const RopeConfig& rope, int32_t rotary_dim, int32_t max_context) {
  const bool long_context = max_context > rope.original_max_position;
  const std::vector<float>& divisors = long_context && !rope.long_divisors.empty() ? rope.long_divisors : rope.frequency_divisors;
  const YarnRange yarn(rope, rotary_dim);
  std::vector<float> frequencies(rotary_dim / 2);
  double theta = rope.theta;
  if (rope.scaling == RopeScaling::kDynamic && long_context && rotary_dim > 2) {
    const double length = static_cast<double>(max_context) / rope.original_max_position;
    theta *= std::pow(rope.factor * length - (rope.factor - 1), rotary_dim / (rotary_dim - 2.0));  // "NTK-aware" scaling
  }
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / rotary_dim);
    if (rope.scaling == RopeScaling::kLinear) frequency /= rope.factor;
    if (rope.scaling == RopeScaling::kLlama3) frequency = ScaleLlama3(frequency, rope);
    if (rope.scaling == RopeScaling::kYarn) frequency = yarn.Scale(frequency, i, rope.factor);
    if (!divisors.empty()) frequency /= divisors[i];
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

}  // namespace coppice
