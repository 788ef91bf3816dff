// What is shared: for each node of the forest whether its tokens are read once for all rows below it or by the ranges below, and
// from that the range of each shared node and row tile. Knows no items, cuts or backends: prices are those of RangeCosts, and near
// the edge those of the backend's StepPricer. Edited in place: only changed nodes are decided again.
// Layer: attention, private. Hydragen section 3, Bifurcated section 4; many levels: Cascade Inference; prompt phase: RelayAttention
// algorithm 1. docs/attention.md, "What is decided".
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "attention/arena.h"
#include "attention/cost_model.h"
#include "attention/forest.h"
#include "attention/plan_changes.h"
#include "attention/plan_problem.h"
#include "attention/range_costs.h"
#include "attention/row_tiles.h"
#include "attention/step_pricer.h"

namespace coppice::attention {

// Why a node's tokens are read once for all below, or by the items below.
enum class Decision : uint8_t {
  kIdle,          // no queries below
  kNothing,       // no tokens of its own to decide about (empty, out of every window, or a leaf of one row tile)
  kOnlyConsumer,  // one child, row tile or branch has all its queries: that one reads on through
  kPolicy,        // the policy forbids sharing here
  kAbsorbed,      // predicted cheaper to read by each child
  kShared,        // predicted cheaper to read once
  kForced,        // shared because force_sharing says so
  kCapacity,      // would be shared, but items or states would not fit the plan's capacity
  kNoGain,        // worth it by itself, but the whole step is predicted to end no sooner than one that shares nothing
};

// "shared", "absorbed", ...: for reports.
std::string_view Name(Decision decision);

// Halvings of splitting, then of sharing too, before giving both up to fit a capacity.
inline constexpr int32_t kOnlyCoarser = 2, kMaxPressure = 12;

struct NodePlan {
  int32_t rows = 0, num_sets = 0, num_consumers = 0;  // of the subtree; children and row tiles (or branches) with queries
  int32_t min_query = 0, max_query = 0;
  int32_t chain_begin = 0;                       // begin of the tokens that are read on through by this node alone if it shares
  int32_t share_end = 0;                         // items below begin here if this node is shared
  int32_t tokens = 0;                            // visible ones from chain_begin to share_end: what the decision is about
  int32_t chain_below = 0;                       // chain_begin that an only consumer inherits; kLive: none
  int32_t range_begin = 0;                       // where an item that covers this node begins
  int32_t range_below = 0;                       // where items below begin
  int64_t step_tokens = 0, step_compute_ps = 0;  // part of the step if everything were shared
  int64_t read_tokens = 0;                       // its tokens that a step reads, at typical lengths
  int32_t own_reads = 0, below_reads = 0;        // items that read this node's tokens if it is shared; if not
  double own_compute = 0, below_compute = 0;     // their compute time a token
  double share_ns = 0, absorb_ns = 0;            // weighted cost of the two choices
  int32_t items_begin = 0, items_above = 0;      // as wanted: where items below begin, and how many there are before them
  Decision wanted = Decision::kIdle;             // by the node alone
  Decision decision = Decision::kIdle;           // with a view to the step

  static bool Shares(Decision d) { return d == Decision::kShared || d == Decision::kForced; }
  bool shared() const { return Shares(decision); }
  bool absorbed() const {
    return decision == Decision::kAbsorbed || decision == Decision::kPolicy || decision == Decision::kCapacity ||
           decision == Decision::kNoGain;
  }
  int32_t reads() const { return Shares(wanted) ? own_reads : below_reads; }
  double compute() const { return Shares(wanted) ? own_compute : below_compute; }
};

class SharePlan {
 public:
  SharePlan(const PlanProblem& problem, const RangeCosts& costs, const RowTiles& tiles)
      : problem_(problem), costs_(costs), tiles_(tiles) {}
  void Layout(Arena& arena);
  // Null: steps are compared by their sums.
  void SetPricer(std::unique_ptr<StepPricer> pricer) { pricer_ = std::move(pricer); }

  // A node or row tile that is no more.
  void RetireNode(int32_t n);
  void RetireOwner(int32_t owner);

  // The stages for one forest, in order. Sum goes up and down the marked nodes, marks their ancestors and finds prices; Decide
  // decides and finds ranges, and may be called again with more pressure, if what comes of it does not fit: REQUIRES all nodes
  // marked then.
  void Sum(const ForestIndex& forest, PlanChanges& changes);
  void Decide(int32_t pressure);

  // What came of it. Owners: PlanProblem.
  const NodePlan& node(int32_t n) const { return nodes_[n]; }
  const ShareRange& range(int32_t owner) const { return ranges_[owner]; }
  int64_t range_ps(int32_t owner) const { return range_ps_[owner]; }  // predicted before any cut
  int64_t ranges_ps() const { return ranges_ps_; }                    // of all of them
  int32_t shared_nodes() const { return shared_nodes_; }
  int32_t absorbed_nodes() const { return absorbed_nodes_; }
  int32_t nodes_decided() const { return nodes_decided_; }  // for the last forest
  double step_ns() const { return step_ns_; }               // predicted, where whole steps are
  double memory_price() const { return memory_price_; }
  double compute_price() const { return compute_price_; }
  // Whether a plan may hold for more than one length of a branch that has queries: its one row tile ends at kLive.
  bool Grows(int32_t branch) const { return forest_->IsLive(forest_->branch_node[branch]) && tiles_.NumTiles(branch) == 1; }

 private:
  // An owner's item before any cut, at typical lengths.
  struct StepItem {
    int32_t rows = 0;  // 0: owns nothing
    int32_t begin = 0, end = 0;
    int32_t num_sets = 0;  // of a row tile; 0: a shared node
    int32_t items = 0;     // of a row tile's rows: itself and the shared ones above

    int32_t tokens() const { return std::max(0, end - begin); }
    bool operator==(const StepItem&) const = default;
  };
  // The whole step under one choice of shared nodes; `shape` is the sum of the items.
  struct Step {
    StepShape shape;
    std::span<StepItem> items;  // [owners]
    double ns = 0;              // by sums; 0: not asked for since it changed
    double as_cut_ns = 0;       // the same by the backend's cuts

    void Change() { ns = as_cut_ns = 0; }
  };
  // How CostModel::Cut cuts an item of a step; remembered as RowCosts are.
  struct ItemCut {
    int32_t rows = -1, tokens = 0;
    int64_t shortest = 0;
    Pieces pieces;
    int64_t dense_tasks = 0;
    double fold_ns = 0, fold_state_ns = 0;
  };

  // tree_sums.cc
  void SumUpwards();
  void SumNode(int32_t n);
  void FindChains();
  // decide.cc
  void SetPrices();
  void DecideNode(int32_t n);
  Decision Choose(int32_t n) const;
  void CountDecision(const NodePlan& node, int32_t sign);
  // judge.cc
  void ListItems();
  void JudgeStep();
  // Whether the step as the nodes want it ends soon enough before one that shares nothing.
  bool WantedStepPays();
  double SumsNs(Step& step);
  double AsCutNs(Step& step);
  // Of a row tile of a branch at the node: tokens before it are read by others too.
  int32_t CachedEnd(const NodePlan& node, int32_t branch) const {
    return tiles_.NumTiles(branch) == 1 && node.num_consumers == 1 ? node.chain_begin : node.share_end;
  }
  // Where a row tile of a branch that ends at `end` is taken to end when times are predicted.
  int32_t PlannedEnd(int32_t branch, int32_t end) const {
    const int32_t n = forest_->branch_node[branch];
    return Grows(branch) ? problem_.PlannedClass(forest_->begin[n], forest_->kv_len[branch]).planned : end;
  }
  double StepNs(Step& step) { return judged_as_cut_ ? AsCutNs(step) : SumsNs(step); }
  StepChains ChainsOf(const Step& step);
  void SetItem(Step& step, int32_t owner, const StepItem& item);
  void CountItem(const StepItem& item, int64_t sign, StepShape& shape) const;
  void SetReadTokens(NodePlan& node, int64_t tokens);
  const ItemCut& CutOf(int32_t rows, int32_t tokens, int64_t shortest) {
    const uint32_t hash = (static_cast<uint32_t>(rows) * 0x9E3779B1u + static_cast<uint32_t>(tokens)) * 0x85EBCA6Bu;
    ItemCut& cut = item_cuts_[hash >> (32 - kItemCutsBits)];
    if (cut.rows != rows || cut.tokens != tokens || cut.shortest != shortest) [[unlikely]] {
      cut = ComputeItemCut(rows, tokens, shortest);
    }
    return cut;
  }
  ItemCut ComputeItemCut(int32_t rows, int32_t tokens, int64_t shortest) const;
  // ranges.cc
  void AssignRanges();
  void SetRange(int32_t owner, const ShareRange& range);

  const PlanProblem& problem_;
  const RangeCosts& costs_;
  const RowTiles& tiles_;
  std::unique_ptr<StepPricer> pricer_;
  const ForestIndex* forest_ = nullptr;  // of the last Sum
  PlanChanges* changes_ = nullptr;
  int32_t pressure_ = 0;

  std::span<NodePlan> nodes_;     // [N]
  std::span<ShareRange> ranges_;  // [owners]
  std::span<int64_t> range_ps_;   // [owners] predicted before any cut
  int64_t ranges_ps_ = 0;
  int64_t step_tokens_ = 0, step_compute_ps_ = 0;  // sums over nodes
  int32_t shared_nodes_ = 0, absorbed_nodes_ = 0, nodes_decided_ = 0;

  // Inputs that all decisions depend on, coarse enough to change rarely.
  double memory_price_ = 1, compute_price_ = 1;
  bool sharing_pays_ = true;
  Step unshared_, wanted_;            // if nothing were shared; as the nodes want. Kept where they are compared or predict the step
  double step_ns_ = 0;                // of the two, the one that is planned
  bool judged_as_cut_ = false;        // what step_ns_ is by
  std::span<int32_t> states_above_;   // [N] ChainsOf: pieces of shared nodes, down to and including this one
  std::span<StepRange> step_ranges_;  // [owners] AsCutNs
  std::span<int32_t> range_of_node_;  // [N] AsCutNs: of the nearest node that is shared, this one or above; -1: none
  static constexpr int kItemCutsBits = 8;
  std::array<ItemCut, 1 << kItemCutsBits> item_cuts_;
};

}  // namespace coppice::attention
