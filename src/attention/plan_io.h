// A plan as JSON: what it was made from (forest, spec, capacity, options, traits, machine model) and what came out, so that a bug
// report can be replayed (`coppice inspect plan --replay`). Layer: attention, private.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "attention/owned_forest.h"
#include "attention/plan.h"

namespace coppice::attention {

// The source of a dump.
struct PlanDump : OwnedForest {
  AttentionSpec spec;
  PlanCapacity capacity;
  PlannerOptions options;
  BackendTraits traits;
  MachineModel machine;
};

// The dump of the planner's last Update. tasks: a JSON object that says how a backend cut the plan, or empty; not read back.
std::string DumpPlan(const Planner& planner, const std::string& tasks = "");
// INVALID_ARGUMENT names the field that is missing or of the wrong type.
Result<PlanDump> ParsePlanDump(std::string_view json);
// A planner of the dump's own traits and machine, updated with its forest. Errors are those of Planner::Create and Update.
Result<std::unique_ptr<Planner>> ReplayPlan(const PlanDump& dump);

}  // namespace coppice::attention
