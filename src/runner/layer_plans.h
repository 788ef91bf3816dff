// The attention plans of a model's layers, one for each group of layers that attend alike, all over one forest. Layer: runner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coppice/attention/attention.h"
#include "runner/read_sharing.h"
#include "runner/runner.h"

namespace coppice {

// Thread-compatible.
class LayerPlans {
 public:
  struct Group {
    std::unique_ptr<attention::AttentionPlan> plan;
    int32_t num_layers = 0;
  };
  explicit LayerPlans(std::vector<Group> groups);
  // One group of layers.
  static std::vector<Group> Single(std::unique_ptr<attention::AttentionPlan> plan, int32_t num_layers);

  // One a group.
  std::span<attention::AttentionPlan* const> plans() const { return plans_; }
  // AttentionPlan::DeviceImage of each plan, kImageBits a plan, three a launch: a captured step serves where this says the same.
  uint64_t DeviceImages() const;
  // Plans a step and copies what changed, in stream order. Says in `stats` what attention will read.
  Status Prepare(const attention::PrefixForestView& forest, Stream stream, StepStats* stats);

 private:
  static constexpr size_t kImageBits = 6;
  std::span<const BranchReads> SumReads();

  std::vector<Group> groups_;
  std::vector<attention::AttentionPlan*> plans_;  // of groups_
  std::vector<ReadSharing> sharing_;              // of groups_
  // Of several groups: their sums, of the step planned last and of the one before it.
  std::vector<BranchReads> sums_[2];
  int32_t sum_ = 0;
};

}  // namespace coppice
