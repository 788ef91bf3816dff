// A plan as it is cut for a GPU, made without one: what `coppice inspect plan --machine`, replays and tests look at, and what of it
// the executor of a device shows too. Layer: attention/cuda.
#pragma once

#include <cstddef>
#include <memory>

#include "attention/cost_model.h"
#include "attention/cuda/lower/plan_translator.h"
#include "attention/plan.h"

namespace coppice::attention::cuda {

// The plan that a translator translated last, and what predicts its time.
struct LoweredView {
  const PlanTranslator& translator;
  const PlanView& plan;
  const CostModel& cost;
};

class LoweredPlan {
 public:
  // Translates the planner's plan for the GPU of its machine model. REQUIRES: an Update, and a model with `sm`. The plan must not
  // change while this is looked at.
  explicit LoweredPlan(const Planner& planner) : LoweredPlan(planner, planner.forest()) {}
  // At the lengths that the share decision predicts the step for.
  static LoweredPlan AtTypicalLengths(const Planner& planner);

  LoweredView view() const { return {.translator = translator_, .plan = plan_, .cost = cost_}; }
  const std::byte* image() const { return image_.get(); }

 private:
  LoweredPlan(const Planner& planner, const PrefixForestView& forest);

  PlanView plan_;
  CostModel cost_;
  PlanTranslator translator_;
  std::unique_ptr<std::byte[]> image_;  // written as far as the plan reaches
};

}  // namespace coppice::attention::cuda
