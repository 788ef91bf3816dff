// What a backend (cpu/, cuda/) gives the planner and executes for it. The planner (plan.cc) is the same for all backends.
// Layer: attention, private.
#pragma once

#include <memory>

#include "attention/cost_model.h"
#include "coppice/attention/attention.h"

namespace coppice::attention {

// What the planner must know of the kernels.
struct BackendTraits {
  int32_t workers = 1;           // tasks that run at the same moment (cores, or SMs x workers per SM)
  int32_t dense_tile_rows = 64;  // rows per dense tile; items of more rows are cut by the kernel or by the planner (max_item_rows)
  int32_t dense_min_rows = 8;    // below this a range is a stream tile
  int32_t dense_row_unit = 0;    // rows are padded to multiples of this in dense tiles; 0: of dense_min_rows
  int32_t stream_lanes = 1;      // stream tasks that one worker runs at the same moment (an SM's warps)
  int32_t team_lanes = 0;        // of them, those that read a task together where each worker has one at most; 0: none do
  int32_t max_item_rows = 0;     // an item may serve at most this many rows (per kv head); 0: no limit
  int32_t kv_tile = 64;          // tokens per inner tile: cuts fall on multiples of it
  int32_t max_heads_per_task = 0;  // kv heads that one task may take; 0: no limit
  int32_t native_head_dim = 0;     // head_dim after on-chip padding (the cost of padding is shown by the plan)
};

// Exact sizes of a plan for a backend with these traits: what Context::Sizes answers, but for plan_bytes, which is left 0 (a
// device copy is the backend's own business). `spec` and `capacity` are valid, max_nodes resolved (as AttentionPlan::Create does).
PlanSizes ComputePlanSizes(const AttentionSpec& spec, const PlanCapacity& capacity, const BackendTraits& traits);

// One plan's device side: its copy of the plan, workspace (states, tickets) and launch.
class PlanExecutor {
 public:
  virtual ~PlanExecutor() = default;
  // Called after Update changed the plan or lengths; `forest` and `plan` stay valid until the next call.
  virtual Status Upload(const PlanView& plan, const PrefixForestView& forest, Stream stream) = 0;
  virtual Status Run(const BoundKv& kv, const RunArgs& args, Stream stream) = 0;
};

class Backend : public Context {
 public:
  // UNIMPLEMENTED with the reason when the kernels cannot do it.
  virtual Result<BackendTraits> Traits(const AttentionSpec& spec, const PlanCapacity& capacity) const = 0;
  virtual const MachineModel& machine() const = 0;
  virtual Result<std::unique_ptr<PlanExecutor>> MakeExecutor(const AttentionSpec& spec, const PlanCapacity& capacity,
                                                             const PlanSizes& sizes) = 0;
};

}  // namespace coppice::attention
