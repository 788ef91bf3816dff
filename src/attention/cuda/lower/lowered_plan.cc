// Translation into host memory. Layer: attention/cuda.
#include "attention/cuda/lower/lowered_plan.h"

#include <cstdint>
#include <vector>

#include "core/check.h"

namespace coppice::attention::cuda {

LoweredPlan::LoweredPlan(const Planner& planner, const PrefixForestView& forest)
    : plan_(planner.View()),
      cost_(planner.spec(), planner.traits(), planner.machine()),
      translator_(planner.spec(), planner.capacity(), planner.sizes(), planner.machine().sm, planner.traits()),
      image_(std::make_unique_for_overwrite<std::byte[]>(translator_.layout().bytes)) {
  COPPICE_CHECK(planner.machine().sm.num_sms > 0);
  translator_.TranslatePlan(plan_, forest);
  translator_.WriteImage(image_.get());
  translator_.TranslateLengths(forest, image_.get());
}

LoweredPlan LoweredPlan::AtTypicalLengths(const Planner& planner) {
  PrefixForestView forest = planner.forest();
  std::vector<int32_t> lengths(forest.branch_kv_len.size());
  for (size_t b = 0; b < lengths.size(); ++b) lengths[b] = planner.TypicalLength(static_cast<int32_t>(b));
  forest.branch_kv_len = lengths;
  return LoweredPlan(planner, forest);
}

}  // namespace coppice::attention::cuda
