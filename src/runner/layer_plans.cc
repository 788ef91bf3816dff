#include "runner/layer_plans.h"

#include <utility>

#include "core/check.h"

namespace coppice {

LayerPlans::LayerPlans(std::vector<Group> groups) : groups_(std::move(groups)) {
  for (const Group& group : groups_) plans_.push_back(group.plan.get());
}

std::vector<LayerPlans::Group> LayerPlans::Single(std::unique_ptr<attention::AttentionPlan> plan, int32_t num_layers) {
  std::vector<Group> groups;
  groups.push_back({std::move(plan), num_layers});
  return groups;
}

Status LayerPlans::Prepare(const attention::PrefixForestView& forest, Stream stream, StepStats* stats) {
  for (const auto& [plan, num_layers] : groups_) {
    COPPICE_RETURN_IF_ERROR(plan->Update(forest));
    COPPICE_RETURN_IF_ERROR(plan->Upload(stream));
    const attention::PlanStats planned = plan->Stats();
    stats->kv_bytes_read += planned.kv_bytes_read * num_layers;
    stats->kv_bytes_read_unshared += planned.kv_bytes_read_unshared * num_layers;
    if (plan == groups_.front().plan) stats->grouped_rows = grouped_rows_.Count(*plan, planned.updates_replanned);
  }
  return OkStatus();
}

}  // namespace coppice
