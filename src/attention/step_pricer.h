// A backend's prediction of a step that is not planned yet: the share decision asks where its own sums, which know no
// cuts, are too close to say. Implemented by the functions that the lowering cuts with, so that no rule of cuts and no constant
// stands twice. Layer: attention, private.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "attention/plan_problem.h"

namespace coppice::attention {

// The range that one shared node, or one row tile of a branch, reads before any cut.
struct StepRange {
  int32_t node;  // whose path it reads a part of
  int32_t begin, end;
  int32_t rows;      // under one kv head
  int32_t num_sets;  // merge sets of a row tile; 0: a shared node
  int32_t set_rows;  // rows of the largest of these
  int32_t prompt;    // of a row tile of several queries: its branch; -1
  int32_t above;     // the shared range that its rows read before this one, by its place in the step; -1: none
  // By which deterministic mode cuts it (ShareRange): `end` as times are predicted, and as far as the plan may have to hold.
  int32_t cached_end, planned_end, laid_out_end;
};

// All ranges of a step. A range comes after the one above it. Nodes by slot.
struct StepRanges {
  std::span<const StepRange> ranges;
  std::span<const int32_t> node_parent, node_begin, node_end;
};

class StepPricer {
 public:
  virtual ~StepPricer() = default;
  // Nanoseconds of the step, cut as the lowering cuts it. Allocates nothing.
  virtual double StepNs(const StepRanges& step) = 0;
};

// Of the problem's backend: null where steps are sums (CPUs). Allocates for steps of the capacity. The problem outlives it.
std::unique_ptr<StepPricer> MakeStepPricer(const PlanProblem& problem);

}  // namespace coppice::attention
