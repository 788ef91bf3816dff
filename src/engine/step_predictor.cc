#include "engine/step_predictor.h"

#include <algorithm>

#include "core/check.h"

namespace coppice {
namespace {

// Of a step's weight, what is left a step later: some 50 steps decide, less than a second of most models' traffic.
constexpr double kKept = 0.98;
// Of the probe's weight, what is never forgotten, so that no factor drifts while all steps look alike.
constexpr double kAnchor = 0.01;
constexpr int kSweeps = 50;

}  // namespace

StepPredictor::StepPredictor(std::span<const ChunkSpeed> probe) {
  COPPICE_CHECK(!probe.empty());
  for (const ChunkSpeed& speed : probe)
    probe_.push_back({.rows = static_cast<double>(speed.tokens), .seconds = speed.tokens / speed.tokens_per_second});
  // More rows never take less, whatever was measured.
  for (size_t i = 1; i < probe_.size(); ++i) probe_[i].seconds = std::max(probe_[i].seconds, probe_[i - 1].seconds);
  factors_[kProbed] = 1;
}

// Straight lines between points; below the first one constant, since weights are read whatever the rows.
double StepPredictor::ProbeSeconds(int32_t rows) const {
  if (rows <= probe_.front().rows) return probe_.front().seconds;
  if (probe_.size() == 1) return probe_.front().seconds * rows / probe_.front().rows;
  size_t i = 1;
  while (i + 1 < probe_.size() && probe_[i].rows < rows) ++i;
  const Point &a = probe_[i - 1], &b = probe_[i];
  return a.seconds + (b.seconds - a.seconds) * (rows - a.rows) / (b.rows - a.rows);
}

StepPredictor::Terms StepPredictor::TermsOf(const StepSums& shape) const {
  return {static_cast<double>(shape.decode_kv), static_cast<double>(shape.prompt_kv), static_cast<double>(shape.decode_rows), 1,
          ProbeSeconds(shape.rows())};
}

void StepPredictor::Add(const StepSums& shape, double seconds) {
  if (!(seconds > 0) || shape.rows() == 0) return;
  const Terms terms = TermsOf(shape);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) products_[i][j] = kKept * products_[i][j] + terms[i] * terms[j] / (seconds * seconds);
    right_[i] = kKept * right_[i] + terms[i] / seconds;
  }
  Fit();
}

// Coordinate descent from the factors of the step before. The time of contexts comes first, since no probe has measured it: where
// steps are so much alike that several factors explain them, it is theirs.
void StepPredictor::Fit() {
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int i = 0; i < kTerms; ++i) {
      const double anchor = i == kProbed ? kAnchor : 0;  // a step of the probe that took what was measured
      const double own = products_[i][i] + anchor;
      if (own <= 0) continue;
      double rest = right_[i] + anchor;
      for (int j = 0; j < kTerms; ++j) rest -= j == i ? 0 : products_[i][j] * factors_[j];
      factors_[i] = std::max(0.0, rest / own);
    }
  }
}

double StepPredictor::Seconds(const StepSums& shape) const {
  const Terms terms = TermsOf(shape);
  double seconds = 0;
  for (int i = 0; i < kTerms; ++i) seconds += factors_[i] * terms[i];
  return seconds;
}

int32_t StepPredictor::MostPromptRows(const StepSums& step, int32_t before, double target, int32_t most) const {
  int32_t fits = 0, beyond = std::max(most, 0) + 1;
  while (beyond - fits > 1) {
    const int32_t rows = fits + (beyond - fits) / 2;
    StepSums with = step;
    with.AddPrompt(rows, before);
    (Seconds(with) <= target ? fits : beyond) = rows;
  }
  return fits;
}

}  // namespace coppice
