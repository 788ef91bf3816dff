// A step's attention in two launches: the branches with several queries, chunks of prompts for the most part, then those with one.
// Engines without POD-Attention run it so (FA_Serial there): a baseline. Layer: attention, private.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/shared_reads.h"
#include "attention/work_list.h"

namespace coppice::attention {

class SplitPlan final : public InspectablePlan {
 public:
  // Plans of the same spec and capacity: what Create made of AttentionPlan's options.
  SplitPlan(std::unique_ptr<InspectablePlan> several, std::unique_ptr<InspectablePlan> single, int32_t max_branches);

  // Where the second plan refuses a forest that the first one took, Run is refused until both have taken one.
  Status Update(const PrefixForestView& forest) override;
  Status Upload(Stream stream) override;
  LaunchKey launch_key() const override;
  Status Run(const BoundKv& kv, const RunArgs& args, Stream stream) override;

  // The lists of both, one after the other. Counts no revisions.
  PlanView View() const override;
  // Sums.
  PlanStats PlannedStats() const override;
  PlanStats Stats() const override;
  std::vector<NodeRead> NodeReads() const override;  // of the launch that more of a node's branches take part in
  PlanReads Reads() override;
  std::string Explain() const override;
  std::string Dump() const override;  // of the second launch

 private:
  struct Part {
    std::unique_ptr<InspectablePlan> plan;
    std::vector<int32_t> query_count;  // by branch: 0 where the other part computes it
  };
  struct Lists {
    std::vector<WorkItem> items;
    std::vector<int32_t> members, compute_queue, bandwidth_queue;
    std::vector<MergeSet> merge_sets;
    std::vector<Contribution> contributions;
    int64_t replanned = -1;  // PlanStats::updates_replanned that they are of
  };

  std::array<Part, 2> parts_;
  PrefixForestView forest_;  // of the last Update that both took
  SharedReads shared_reads_;
  mutable Lists lists_;  // of View, once for each plan
};

}  // namespace coppice::attention
