#include "runner/step_graphs.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "core/math.h"

namespace coppice {
namespace {

int32_t BitFloor(int32_t value) { return static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(value))); }
int32_t BitCeil(int32_t value) { return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(value))); }

// The power of two that numbers of rows near `rows`, above 8, are multiples of. Products have tiles of 64 and 128 rows.
int32_t RowMultiple(int32_t rows) { return rows <= 256 ? 8 : std::max(32, BitCeil(rows) / 64); }

int32_t FilledUpRows(int32_t rows, Filling filling) {
  const int32_t power = BitCeil(rows);
  if (rows <= 8) return power;
  if (filling == Filling::kFine) return RoundUp(rows, RowMultiple(rows));
  const int32_t between = power / 4 * 3;
  return rows <= between && between % 8 == 0 ? between : power;
}

// Of rows of logits, or of draws, in a step of `rows` rows, themselves filled up to a multiple of `multiple`: powers of two up to a
// sixteenth of the rows, multiples of that beyond, all of them multiples of `multiple`. So a step with one for each row has one for
// each row when it is filled up.
int32_t FilledUpWanted(int32_t count, int32_t rows, int32_t multiple, Filling filling) {
  if (count == 0) return 0;
  const int32_t fewest = std::max(multiple, BitFloor(rows) / 64), sixteenth = std::max(multiple, BitFloor(rows) / 16);
  const int32_t filled = count <= sixteenth ? std::max(fewest, BitCeil(count)) : RoundUp(count, sixteenth);
  return filling == Filling::kCoarse && count <= rows && 2 * filled > rows ? rows : filled;
}

}  // namespace

StepShape FilledUp(const StepShape& step, const StepShape& most, Filling filling) {
  COPPICE_DCHECK(step.rows > 0 && step.rows <= most.rows && step.logit_rows <= step.rows && step.draws <= most.draws);
  StepShape filled;
  const int32_t multiple = RowMultiple(step.rows);
  filled.rows = std::min(FilledUpRows(step.rows, filling), most.rows);
  filled.logit_rows = std::min(FilledUpWanted(step.logit_rows, filled.rows, multiple, filling), filled.rows);
  filled.draws = std::min(FilledUpWanted(step.draws, filled.rows, multiple, filling), most.draws);
  if (step.draws <= filled.logit_rows) filled.draws = std::min(filled.draws, filled.logit_rows);
  return filled;
}

StepGraphs::Captured* StepGraphs::Find(const StepClass& step_class, const LaunchKeys& keys) {
  if (max_graphs_ == 0) return nullptr;
  const auto [place, is_new] = classes_.try_emplace(step_class);
  place->second.asked = ++calls_;
  if (is_new) {
    if (classes_.size() > kMaxClasses) ForgetOldest(/*with_graphs=*/false);
    return nullptr;
  }
  std::map<LaunchKeys, Captured>& graphs = place->second.graphs;
  if (const auto found = graphs.find(keys); found != graphs.end()) return &found->second;
  if (num_graphs_ >= max_graphs_) {
    if (std::ssize(graphs) == num_graphs_) {  // there are no others
      num_graphs_ = 0;
      graphs.clear();
    } else {
      ForgetOldest(/*with_graphs=*/true);
    }
  }
  Captured& captured = graphs[keys];
  ++num_graphs_;
  return &captured;
}

// A class that comes again is first run without a graph: where more of them take turns than there is room for, half of their steps
// are spared a capture.
void StepGraphs::ForgetOldest(bool with_graphs) {
  auto oldest = classes_.end();
  for (auto place = classes_.begin(); place != classes_.end(); ++place) {
    if (with_graphs && place->second.graphs.empty()) continue;
    if (oldest == classes_.end() || place->second.asked < oldest->second.asked) oldest = place;
  }
  num_graphs_ -= static_cast<int32_t>(oldest->second.graphs.size());
  classes_.erase(oldest);
}

}  // namespace coppice
