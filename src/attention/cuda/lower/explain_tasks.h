// A GPU's tasks of a plan, in numbers, words and as JSON: the same on a machine with the device and on one without. Layer:
// attention/cuda.
#pragma once

#include <string>

#include "attention/cuda/lower/lowered_plan.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

// Items, contributions, bytes of states (of sets of several) and time, in place of those of uncut ranges.
void CountCuts(const LoweredView& lowered, PlanStats* stats);
// Ranges by kind and cut, alike ones in one line; tasks; SMs; predicted time.
std::string ExplainTasks(const LoweredView& lowered);
// Each range, with its kind and where it is cut: an object for the dump (plan_io.h).
std::string DumpTasks(const LoweredView& lowered);

}  // namespace coppice::attention::cuda
