#include "runner/layer_plans.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace coppice {

LayerPlans::LayerPlans(std::vector<Group> groups) : groups_(std::move(groups)) {
  COPPICE_CHECK(groups_.size() <= 64 / kImageBits);  // DeviceImages
  for (const Group& group : groups_) plans_.push_back(group.plan.get());
  sharing_.resize(groups_.size());
}

uint64_t LayerPlans::DeviceImages() const {
  uint64_t images = 0;
  for (size_t g = 0; g < plans_.size(); ++g) images |= static_cast<uint64_t>(plans_[g]->DeviceImage()) << kImageBits * g;
  return images;
}

std::vector<LayerPlans::Group> LayerPlans::Single(std::unique_ptr<attention::AttentionPlan> plan, int32_t num_layers) {
  std::vector<Group> groups;
  groups.push_back({std::move(plan), num_layers});
  return groups;
}

Status LayerPlans::Prepare(const attention::PrefixForestView& forest, Stream stream, StepStats* stats) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto& [plan, num_layers] = groups_[g];
    COPPICE_RETURN_IF_ERROR(plan->Update(forest));
    COPPICE_RETURN_IF_ERROR(plan->Upload(stream));
    const attention::PlanStats planned = attention::InspectablePlan::Of(*plan).PlannedStats();
    stats->kv_bytes_read += planned.kv_bytes_read * num_layers;
    stats->kv_bytes_read_unshared += planned.kv_bytes_read_unshared * num_layers;
    stats->kv_bytes_distinct += planned.kv_bytes_distinct * num_layers;
    sharing_[g].Count(*plan, planned, forest, num_layers);
  }
  stats->grouped_rows = sharing_.front().grouped_rows();
  stats->branch_reads = groups_.size() == 1 ? sharing_.front().branches() : SumReads();
  return OkStatus();
}

std::span<const BranchReads> LayerPlans::SumReads() {
  sum_ = 1 - sum_;
  std::vector<BranchReads>& sums = sums_[sum_];
  sums.clear();
  for (const ReadSharing& sharing : sharing_) {
    const std::span<const BranchReads> reads = sharing.branches();
    if (!reads.empty()) sums.resize(reads.size());
    for (size_t b = 0; b < reads.size(); ++b) {
      sums[b].kv_bytes_not_read += reads[b].kv_bytes_not_read;
      sums[b].tokens = std::max(sums[b].tokens, reads[b].tokens);
      sums[b].sharers = std::max(sums[b].sharers, reads[b].sharers);
    }
  }
  return sums;
}

}  // namespace coppice
