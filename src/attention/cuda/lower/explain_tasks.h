// What a GPU runs of a plan, in words: the same lines on a machine with the device and on one without. Layer: attention/cuda.
#pragma once

#include <string>

#include "attention/cuda/lower/plan_translator.h"
#include "attention/plan.h"

namespace coppice::attention::cuda {

// Of the plan that `translator` translated last: ranges by kind and cut, alike ones in one line; tasks; SMs.
std::string ExplainTasks(const PlanTranslator& translator);
// Translates the planner's plan for the GPU of its machine model and explains the tasks. REQUIRES: an Update, and a model with
// `sm`.
std::string ExplainTasks(const Planner& planner);

}  // namespace coppice::attention::cuda
