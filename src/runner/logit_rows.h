// Which rows of a step need logits, and where among those each draw's and each score's lies. Layer: runner.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runner/step_batch.h"

namespace coppice {

// Rows of logits that a batch's draws and scores need, from the last Find; valid until the next one. Thread-compatible.
class LogitRows {
 public:
  void Find(const StepBatch& batch);

  // Rows of the step, increasing.
  std::span<const int32_t> rows() const { return rows_; }
  // Places in rows(), by draw and by score.
  std::span<const int32_t> of_draws() const { return of_draws_; }
  std::span<const int32_t> of_scores() const { return of_scores_; }

 private:
  std::vector<int32_t> rows_, of_draws_, of_scores_;
};

}  // namespace coppice
