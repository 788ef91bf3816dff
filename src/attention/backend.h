// The interface of backends (cpu/, cuda/): their facts for the planner, and execution. The planner (plan.cc) is the same for all
// backends. Layer: attention, private.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "attention/backend_traits.h"
#include "attention/machine_model.h"
#include "attention/work_list.h"
#include "coppice/attention/attention.h"

namespace coppice::attention {

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
  // As AttentionPlan::launch_key.
  virtual LaunchKey launch_key() const { return {}; }
  // For tests: what is uploaded from now on is cut and ordered at random where the backend cuts plans itself.
  virtual void LowerAtRandom(uint64_t) {}
  // Items, contributions, state bytes and predicted time of the plan last uploaded, where the backend cuts plans itself.
  virtual void CountCuts(PlanStats*) const {}
  // The tasks of the plan last uploaded, beyond the planner's own words.
  virtual std::string Explain() const { return ""; }
  // The same for DumpPlan: a JSON object, or empty.
  virtual std::string DumpTasks() const { return ""; }
};

class Backend : public Context {
 public:
  // UNIMPLEMENTED with the reason when the kernels cannot do it.
  virtual Result<BackendTraits> Traits(const AttentionSpec& spec, const PlanCapacity& capacity) const = 0;
  virtual const MachineModel& machine() const = 0;
  // An executor that lowers plans by the rates of `machine`.
  virtual Result<std::unique_ptr<PlanExecutor>> MakeExecutor(const AttentionSpec& spec, const PlanCapacity& capacity,
                                                             const PlanSizes& sizes, const MachineModel& machine) = 0;
  Result<std::unique_ptr<PlanExecutor>> MakeExecutor(const AttentionSpec& spec, const PlanCapacity& capacity,
                                                     const PlanSizes& sizes) {
    return MakeExecutor(spec, capacity, sizes, machine());
  }
};

}  // namespace coppice::attention
