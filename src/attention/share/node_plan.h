// A node of the forest as the share decision sees it. Layer: attention, private.
#pragma once

#include <cstdint>
#include <string_view>

namespace coppice::attention {

// Why a node's tokens are read once for all below, or by the items below.
enum class Decision : uint8_t {
  kIdle,          // no queries below
  kNothing,       // no tokens of its own to decide about (empty, out of every window, or a leaf of one row tile)
  kOnlyConsumer,  // one child, row tile or branch has all its queries: that one reads on through
  kPolicy,        // the policy forbids sharing here
  kReadPerChild,  // predicted cheaper to read by each child
  kShared,        // predicted cheaper to read once
  kForced,        // shared because force_sharing says so
  kCapacity,      // would be shared, but items or states would not fit the plan's capacity
  kNoGain,        // worth it by itself, but the whole step is predicted to end no sooner than one that shares nothing
};

// "shared", "read per child", ...: for reports.
std::string_view Name(Decision decision);

struct NodePlan {
  int32_t rows = 0, num_sets = 0, num_consumers = 0;  // of the subtree; children and row tiles (or branches) with queries
  int32_t min_query = 0, max_query = 0;
  int32_t run_begin = 0;                         // begin of the tokens that are read on through by this node alone if it shares
  int32_t share_end = 0;                         // items below begin here if this node is shared
  int32_t tokens = 0;                            // visible ones from run_begin to share_end: what the decision is about
  int32_t run_below = 0;                         // run_begin that an only consumer inherits; kLive: none
  int32_t range_begin = 0;                       // where an item that covers this node begins
  int32_t range_below = 0;                       // where items below begin
  int64_t step_tokens = 0, step_compute_ps = 0;  // part of the step if everything were shared
  int64_t read_tokens = 0;                       // its tokens that a step reads, at typical lengths
  int32_t own_reads = 0, below_reads = 0;        // items that read this node's tokens if it is shared; if not
  double own_compute = 0, below_compute = 0;     // their compute time a token
  double share_ns = 0, per_child_ns = 0;         // weighted cost of the two choices
  int32_t items_begin = 0, items_above = 0;      // as wanted: where items below begin, and how many there are before them
  Decision wanted = Decision::kIdle;             // by the node alone
  Decision decision = Decision::kIdle;           // with a view to the step

  static bool Shares(Decision d) { return d == Decision::kShared || d == Decision::kForced; }
  bool shared() const { return Shares(decision); }
  bool is_read_per_child() const {
    return decision == Decision::kReadPerChild || decision == Decision::kPolicy || decision == Decision::kCapacity ||
           decision == Decision::kNoGain;
  }
  int32_t reads() const { return Shares(wanted) ? own_reads : below_reads; }
  double compute() const { return Shares(wanted) ? own_compute : below_compute; }
};

}  // namespace coppice::attention
