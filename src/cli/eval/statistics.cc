#include "cli/eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"

namespace coppice::cli {
namespace {

constexpr double kZ = 1.959963984540054;  // 97.5 % of a normal distribution lie below

}  // namespace

Estimate Proportion(double successes, int64_t n) {
  if (n == 0) return {.value = 0, .low = 0, .high = 1, .n = 0};
  const double total = static_cast<double>(n), p = successes / total, z2 = kZ * kZ;
  const double center = (p + z2 / (2 * total)) / (1 + z2 / total);
  const double half = kZ / (1 + z2 / total) * std::sqrt(p * (1 - p) / total + z2 / (4 * total * total));
  return {.value = p, .low = std::max(0.0, center - half), .high = std::min(1.0, center + half), .n = n};
}

Estimate Mean(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  if (values.empty()) return {};
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double half = values.size() > 1 ? kZ * std::sqrt(squares / (n - 1) / n) : 0;
  return {.value = mean, .low = mean - half, .high = mean + half, .n = std::ssize(values)};
}

Estimate Perplexity(std::span<const double> sums, std::span<const int64_t> counts) {
  COPPICE_DCHECK(sums.size() == counts.size());
  const int64_t tokens = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (tokens == 0) return {};
  const double mean = std::accumulate(sums.begin(), sums.end(), 0.0) / static_cast<double>(tokens);
  // Var(sum / count) ~ sum of (sum_i - mean count_i)^2 / (mean count)^2, over texts.
  double squares = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    const double residual = sums[i] - mean * static_cast<double>(counts[i]);
    squares += residual * residual;
  }
  const auto texts = static_cast<double>(sums.size());
  const double half = texts > 1 ? kZ * std::sqrt(texts / (texts - 1) * squares) / static_cast<double>(tokens) : 0;
  return {.value = std::exp(-mean), .low = std::exp(-mean - half), .high = std::exp(-mean + half), .n = tokens};
}

double PassAt(int64_t k, int64_t n, int64_t c) {
  COPPICE_DCHECK(c >= 0 && c <= n && k >= 1 && k <= n);
  if (n - c < k) return 1;
  double none = 1;
  for (int64_t i = n - c + 1; i <= n; ++i) none *= 1 - static_cast<double>(k) / static_cast<double>(i);
  return 1 - none;
}

}  // namespace coppice::cli
