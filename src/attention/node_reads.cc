// NodeReads: a planner's decisions in the words of the public API. Layer: attention.
#include "coppice/attention/node_reads.h"

#include "attention/plan.h"
#include "attention/work_list.h"

namespace coppice::attention {
namespace {

ReadReason ReasonOf(Decision decision) {
  switch (decision) {
    case Decision::kIdle:
    case Decision::kOnlyConsumer: return ReadReason::kOneReader;
    case Decision::kNothing: return ReadReason::kNotSeen;
    case Decision::kPolicy: return ReadReason::kPolicy;
    case Decision::kReadPerChild:
    case Decision::kShared: return ReadReason::kFaster;
    case Decision::kForced: return ReadReason::kForced;
    case Decision::kCapacity: return ReadReason::kNoRoom;
    case Decision::kNoGain: return ReadReason::kStepNoGain;
  }
  return ReadReason::kOneReader;
}

}  // namespace

std::vector<NodeRead> Planner::NodeReads() const {
  if (!planned_) return {};
  const ForestIndex& forest = forest_.now();
  std::vector<NodeRead> reads(forest.num_nodes());
  const std::span<const int32_t> preorder = forest.Preorder();
  for (size_t i = preorder.size(); i-- > 0;) {  // children first
    const int32_t n = preorder[i];
    const NodePlan& node = shares_.node(n);
    NodeRead& read = reads[n];
    const auto branches = static_cast<int32_t>(forest.BranchesBelow(n).size());
    if (branches > 1 && node.decision == Decision::kOnlyConsumer) {  // the one child that all go through reads on through it
      for (int32_t c = forest.first_child[n]; c >= 0; c = forest.next_sibling[c]) {
        if (reads[c].branches == branches) read = reads[c];
      }
    } else {
      read = {.together = node.shared(),
              .reason = branches > 1 ? ReasonOf(node.decision) : ReadReason::kOneReader,
              .together_us = node.share_ns / 1e3,
              .apart_us = node.per_child_ns / 1e3};
    }
    read.branches = branches;
    if (branches < 2) read.together = false;
  }
  return reads;
}

std::vector<NodeRead> NodeReads(const AttentionPlan& plan) { return InspectablePlan::Of(plan).NodeReads(); }

}  // namespace coppice::attention
