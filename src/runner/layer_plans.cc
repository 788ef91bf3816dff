#include "runner/layer_plans.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/check.h"

namespace coppice {
namespace {

void Add(const attention::PlanReads& reads, int32_t num_layers, std::vector<BranchReads>* sums) {
  if (!reads.branches.empty()) sums->resize(reads.branches.size());
  for (size_t b = 0; b < reads.branches.size(); ++b) {
    const BranchReads& branch = reads.branches[b];
    BranchReads& sum = (*sums)[b];
    sum.kv_bytes_not_read += branch.kv_bytes_not_read * num_layers;
    sum.tokens = std::max(sum.tokens, branch.tokens);
    sum.sharers = std::max(sum.sharers, branch.sharers);
  }
}

}  // namespace

LayerPlans::LayerPlans(std::vector<Group> groups) : groups_(std::move(groups)) {
  for (const Group& group : groups_) plans_.push_back(group.plan.get());
  launch_keys_.resize(groups_.size());
}

std::vector<LayerPlans::Group> LayerPlans::Single(std::unique_ptr<attention::AttentionPlan> plan, int32_t num_layers) {
  std::vector<Group> groups;
  groups.push_back({std::move(plan), num_layers});
  return groups;
}

Status LayerPlans::Prepare(const attention::PrefixForestView& forest, Stream stream, StepStats* stats) {
  std::vector<BranchReads>& branch_reads = branch_reads_[1 - planned_last_];
  branch_reads.clear();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto& [plan, num_layers] = groups_[g];
    COPPICE_RETURN_IF_ERROR(plan->Update(forest));
    const Status uploaded = plan->Upload(stream);
    launch_keys_[g] = plan->launch_key();  // of what it wrote, if only in part
    COPPICE_RETURN_IF_ERROR(uploaded);
    const attention::PlanReads reads = plan->Reads();
    stats->kv_bytes_read += reads.kv_bytes_read * num_layers;
    stats->kv_bytes_read_unshared += reads.kv_bytes_read_unshared * num_layers;
    stats->kv_bytes_distinct += reads.kv_bytes_distinct * num_layers;
    if (g == 0) stats->grouped_rows = reads.grouped_queries;
    Add(reads, num_layers, &branch_reads);
  }
  planned_last_ = 1 - planned_last_;
  stats->branch_reads = branch_reads;
  return OkStatus();
}

std::vector<attention::NodeRead> LayerPlans::NodeReads() const {
  std::vector<attention::NodeRead> reads = attention::NodeReads(*groups_.front().plan);
  for (const Group& group : std::span(groups_).subspan(1)) {
    const std::vector<attention::NodeRead> others = attention::NodeReads(*group.plan);
    for (size_t n = 0; n < std::min(reads.size(), others.size()); ++n) {
      if (others[n].together && !reads[n].together) reads[n] = others[n];
    }
  }
  return reads;
}

}  // namespace coppice
