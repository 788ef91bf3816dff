// Limits of plans and classes of lengths. Layer: attention.
#include "attention/plan_problem.h"

#include <bit>
#include <climits>

#include "core/math.h"

namespace coppice::attention {
namespace {

// Rounding of a leaf's own tokens, see PlannedClass.
constexpr uint32_t kShortestLeaf = 64, kShortLeaf = 512;

PlanSizes Limits(const AttentionSpec& spec, const PlanCapacity& capacity, const BackendTraits& traits) {
  const int32_t set_queries = MaxSetQueries(spec.group_size());
  const int64_t sets = int64_t{capacity.max_branches} + capacity.max_queries / set_queries;
  // Room for a deep tree with a few cuts; more sharing is dropped. Deterministic mode cuts every path at its superblocks.
  const int64_t depth = spec.deterministic ? 12 : 6;
  const int64_t cuts = int64_t{8} * traits.workers;
  // States: two levels for every query (a cached prefix under new prompts), more for as many as decode steps and drafts have.
  const int64_t deep_queries = std::min<int64_t>(capacity.max_queries, int64_t{2} * capacity.max_branches);
  const int64_t rows_with_states = (2 * int64_t{capacity.max_queries} + depth * 2 / 3 * deep_queries) * spec.group_size();
  PlanSizes sizes;
  const auto clamp = [](int64_t value) { return static_cast<int32_t>(std::min<int64_t>(value, INT32_MAX / 2)); };
  sizes.max_merge_sets = clamp(sets);
  sizes.max_items = clamp(depth * sets / 2 + 2 * int64_t{capacity.max_nodes} + cuts);
  sizes.max_members = clamp(depth * sets);
  // A cut gives a contribution to each set of a tile's rows; the heads of an item are tasks of their own.
  sizes.max_contributions = clamp(depth * sets + cuts * std::max(1, traits.dense_tile_rows / spec.num_qo_heads));
  const int64_t state_rows = rows_with_states + cuts * std::max(64, spec.group_size());
  sizes.max_states = clamp(state_rows * spec.num_kv_heads) / spec.num_kv_heads * spec.num_kv_heads;
  return sizes;
}

}  // namespace

PlanProblem::PlanProblem(const AttentionSpec& spec, const PlanCapacity& capacity, const PlannerOptions& options,
                         const BackendTraits& traits, const MachineModel& machine)
    : spec(spec),
      capacity(capacity),
      options(options),
      traits(traits),
      machine(machine),
      sizes(Limits(spec, capacity, traits)),
      set_queries(MaxSetQueries(spec.group_size())),
      tile_sets(std::max(1, traits.dense_tile_rows / (set_queries * spec.group_size()))),
      share_unit(spec.deterministic ? traits.deterministic_unit : 1),
      window_unit(spec.deterministic ? traits.deterministic_unit : RoundUp(64, traits.kv_tile)),
      optional(options.policy != SharePolicy::kStore && !options.force_sharing) {}

LengthClass PlanProblem::PlannedClass(int32_t leaf_begin, int32_t kv_len) const {
  const int32_t ahead = options.lookahead_tokens / 2;
  const uint32_t own = static_cast<uint32_t>(std::max(0, kv_len - leaf_begin) + ahead);
  const uint32_t fine_step = std::bit_floor(own) / 4;
  const uint32_t planned = own <= kShortLeaf ? std::max(kShortestLeaf, std::bit_ceil(own)) : RoundUp(own, fine_step);
  const uint32_t step = planned == kShortestLeaf ? kShortestLeaf
                        : planned <= kShortLeaf  ? planned / 2
                                                 : std::bit_floor(planned - 1) / 4;
  const int32_t last = leaf_begin + static_cast<int32_t>(planned) - ahead;
  return {.first = planned == kShortestLeaf ? INT32_MIN : last - static_cast<int32_t>(step) + 1,
          .last = last,
          .planned = last + ahead,
          .typical = last - std::min(last - leaf_begin, static_cast<int32_t>(step)) / 2};  // of those with tokens of their own
}

}  // namespace coppice::attention
