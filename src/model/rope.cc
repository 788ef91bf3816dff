#include "model/rope.h"

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

}  // namespace

std::vector<float> InverseFrequencies(const RopeConfig& rope, int32_t head_dim) {
  std::vector<float> frequencies(head_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double frequency = std::pow(double{rope.theta}, -2.0 * static_cast<double>(i) / head_dim);
    if (rope.scaling == RopeScaling::kLinear) frequency /= rope.factor;
    if (rope.scaling == RopeScaling::kLlama3) frequency = ScaleLlama3(frequency, rope);
    if (!rope.frequency_divisors.empty()) frequency /= rope.frequency_divisors[i];
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

}  // namespace coppice
