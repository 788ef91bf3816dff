// A plan's problem, and what follows from it: the same for every stage and every step. Layer: attention, private.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/backend_traits.h"
#include "attention/cost_model.h"
#include "attention/machine_model.h"
#include "attention/plan_units.h"
#include "coppice/attention/attention.h"

namespace coppice::attention {

// The id of a range of KV that a plan reads: the range of a shared node, or of a row tile of a branch. Nodes come first, then row
// tiles by their first merge set (PlanProblem::TileRange).
enum class RangeId : int32_t {};
constexpr RangeId NodeRange(int32_t node) { return RangeId{node}; }
constexpr int32_t NodeOf(RangeId range_id) { return static_cast<int32_t>(range_id); }  // REQUIRES: not of a row tile

// A value for each range of a plan.
template <class T>
class ByRange {
 public:
  ByRange() = default;
  ByRange(std::span<T> values) : values_(values) {}  // NOLINT(google-explicit-constructor): of Arena::Take

  T& operator[](RangeId range_id) const { return values_[static_cast<size_t>(range_id)]; }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  std::span<T> values_;  // [ranges]
};

constexpr int32_t AlignDown(int32_t value, int32_t unit) { return value / unit * unit; }

// Queries of one merge set at most.
constexpr int32_t MaxSetQueries(int32_t group_size) { return group_size >= 64 ? 1 : 64 / group_size; }

// The lengths of a branch that times are predicted alike for: the first and the last of them, and what their kLive is taken to be
// in predictions of an item, and in sums of many, which would be too long by a third if each were rounded up.
struct LengthClass {
  int32_t first, last;
  int32_t planned, typical;
};

struct PlanProblem {
  // `capacity` is resolved. Without a cost model.
  PlanProblem(const AttentionSpec& spec, const PlanCapacity& capacity, const PlannerOptions& options, const BackendTraits& traits,
              const MachineModel& machine);

  AttentionSpec spec;
  PlanCapacity capacity;
  PlannerOptions options;
  BackendTraits traits;
  MachineModel machine;
  CostModel cost;
  PlanSizes sizes;                  // what the layout has room for
  int32_t set_queries, tile_sets;   // queries of a merge set, and merge sets of a row tile, at most
  int32_t share_unit, window_unit;  // shares begin and end, and windows begin, at multiples of these
  bool optional;                    // sharing, as far as options say

  // Whether whole steps are compared or predicted.
  bool ComparesSteps() const { return optional || cost.has_latencies(); }
  // Whether the row tiles of one branch may share reads. A backend that cuts ranges itself runs blocks of rows that read the same
  // KV side by side: tiles that read on through what they have in common take no longer, and need no states.
  bool SharesWithinBranches() const { return !traits.cuts_kv || spec.deterministic; }
  int32_t AlignShare(int32_t kv_index) const { return AlignDown(kv_index, share_unit); }
  // A leaf's end, for kLive, when times are predicted: its own tokens rounded up to a step, so that growth changes it
  // rarely. Octaves up to 512 tokens, where fixed costs dominate; a quarter of that above.
  LengthClass PlannedClass(int32_t leaf_begin, int32_t kv_len) const;
  // As far as deterministic plans lay out a branch that may grow: they hold until the next Update, for no length but the present
  // one.
  int32_t LaidOutEnd(int32_t kv_len) const { return RoundUp(kv_len + options.lookahead_tokens, share_unit); }
  // Where items begin for queries of which the first is this one: what lies before is out of every window.
  int32_t VisibleBegin(int32_t min_query) const {
    if (spec.window == 0) return 0;
    return AlignDown(std::max(0, min_query - spec.window + 1), window_unit);
  }

  RangeId TileRange(int32_t first_set) const { return RangeId{capacity.max_nodes + first_set}; }
  bool IsTile(RangeId range_id) const { return static_cast<int32_t>(range_id) >= capacity.max_nodes; }
  // REQUIRES: IsTile.
  int32_t FirstSetOf(RangeId range_id) const { return static_cast<int32_t>(range_id) - capacity.max_nodes; }
  int32_t num_ranges() const { return capacity.max_nodes + sizes.max_merge_sets; }
};

}  // namespace coppice::attention
