// Random numbers that are the same with every standard library: lengths and times of workloads and traces. Layer: simulate.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>

namespace coppice::simulate {

// In (0, 1).
inline double Uniform(std::mt19937_64& random) { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; }
// Of that mean.
inline double Exponential(std::mt19937_64& random, double mean) { return -mean * std::log(Uniform(random)); }
// By Box and Muller.
inline double LogNormal(std::mt19937_64& random, double median, double sigma) {
  const double radius = std::sqrt(-2 * std::log(Uniform(random)));
  const double normal = radius * std::cos(2 * std::numbers::pi * Uniform(random));
  return median * std::exp(sigma * normal);
}

}  // namespace coppice::simulate
