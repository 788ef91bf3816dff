// The attention plans of a model's layers, one for each group of layers that attend alike, all over one forest. Layer: runner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coppice/attention/attention.h"
#include "coppice/attention/node_reads.h"
#include "runner/runner.h"

namespace coppice {

using LaunchKeys = std::vector<attention::LaunchKey>;  // of a step: one a group of layers

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
  // AttentionPlan::launch_key of each plan, after the last Prepare: a captured step serves where these are the same.
  const LaunchKeys& launch_keys() const { return launch_keys_; }
  // Plans a step and copies what changed, in stream order. Says in `stats` what attention will read.
  Status Prepare(const attention::PrefixForestView& forest, Stream stream, StepStats* stats);
  // As Runner has it, of the last Prepare.
  std::vector<attention::NodeRead> NodeReads() const;

 private:
  std::vector<Group> groups_;
  std::vector<attention::AttentionPlan*> plans_;  // of groups_
  LaunchKeys launch_keys_;                        // of groups_
  // Of all layers, of the step planned last and of the one before it, which may be under way.
  std::vector<BranchReads> branch_reads_[2];
  int32_t planned_last_ = 0;
};

}  // namespace coppice
