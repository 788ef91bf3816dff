#include "runner/logit_rows.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace coppice {

void LogitRows::Find(const StepBatch& batch) {
  rows_.clear();
  of_draws_.clear();
  of_scores_.clear();
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  for (size_t d = 0, s = 0; d < batch.draws.size() || s < batch.scores.size();) {  // two lists in order become one
    const int32_t draw_row = d < batch.draws.size() ? batch.draws[d].row : kNone;
    const int32_t score_row = s < batch.scores.size() ? batch.scores[s].row : kNone;
    const int32_t row = std::min(draw_row, score_row);
    COPPICE_DCHECK(rows_.empty() || rows_.back() <= row);
    if (rows_.empty() || rows_.back() != row) rows_.push_back(row);
    const int32_t place = static_cast<int32_t>(rows_.size()) - 1;
    if (draw_row == row) {
      of_draws_.push_back(place);
      ++d;
    } else {
      of_scores_.push_back(place);
      ++s;
    }
  }
}

}  // namespace coppice
