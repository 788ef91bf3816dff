// A plan as work items, merge sets and their contributions: what the CPU's tiles execute, what a GPU's lowering cuts for SMs and
// warps (cuda/lower/), and what counts, tools and tests look at. No part of the public API. Layer: attention, private.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coppice/attention/attention.h"
#include "coppice/attention/node_reads.h"

namespace coppice::attention {

enum class ItemKind : uint8_t {
  kDenseTile,   // many rows over one KV range: compute-bound
  kStreamTile,  // few rows: bandwidth-bound
};
enum ItemFlags : uint8_t {
  kItemMasked = 1,  // some row may not see the whole range: causal tail, window or draft mask
};

// One scheduled tile. A task is an item x a block of heads_per_task kv heads. Rows of an item, per kv head:
// for each of its merge sets in order, for each query of the set, for each query head of the group.
struct WorkItem {
  ItemKind kind;
  uint8_t flags;  // ItemFlags
  uint16_t heads_per_task;
  int32_t page_row;                    // the branch slot through whose page row the range is read
  int32_t kv_begin, kv_end;            // kLive only for items of one branch: its live length
  int32_t member_begin, member_count;  // range of PlanView::members: the merge sets it serves
  int32_t state_begin;                 // first partial state; -1 if every set has this as its only contribution
  uint32_t predicted_ns;
};
static_assert(sizeof(WorkItem) == 32, "two to a cache line");

// At most 64 / group_size (at least 1) consecutive queries of one branch: the unit whose partial states are merged. Query i of the
// set is query query_begin + i of the branch (its row of q: branch_query_begin + query_begin + i).
struct MergeSet {
  int32_t branch, query_begin, query_count;
  int32_t contribution_begin, contribution_count;  // 1: the item writes the output itself
};

// One item's partial states for one merge set, in path order. The state of the set's row r (query * group_size + head in group)
// under kv head h is state_begin + h * head_stride + r.
struct Contribution {
  int32_t state_begin, head_stride, item;
};

// The whole list. Spans stay valid until the next Update of the plan.
struct PlanView {
  AttentionSpec spec;
  int32_t page_size = 0;
  std::span<const WorkItem> items;
  std::span<const int32_t> members;  // merge set ids
  std::span<const MergeSet> merge_sets;
  std::span<const Contribution> contributions;
  std::span<const int32_t> compute_queue, bandwidth_queue;  // item ids, longest predicted first
  int32_t num_states = 0;                                   // fp32 acc[head_dim], m (base 2), l: one per row and kv head
  uint64_t revision = 0;                                    // of one plan: grows whenever anything above changes; 0: not counted
  // Differences from the plan of revision changed_since: items that are new or serve other members, read another range or mask
  // otherwise; merge sets that are new or gone, or have more or fewer contributions or have them elsewhere. A reader that knows an
  // older plan than that compares, or takes all of them.
  uint64_t changed_since = 0;
  std::span<const int32_t> changed_items, changed_sets;
};

// Every AttentionPlan is one, and shows its list.
class InspectablePlan : public AttentionPlan {
 public:
  static const InspectablePlan& Of(const AttentionPlan& plan) { return static_cast<const InspectablePlan&>(plan); }
  virtual PlanView View() const = 0;
  // Stats before what a backend cuts itself.
  virtual PlanStats PlannedStats() const = 0;
  virtual std::vector<NodeRead> NodeReads() const = 0;
};

}  // namespace coppice::attention
