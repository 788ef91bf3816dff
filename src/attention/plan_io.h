// A plan as JSON: what it was made from (forest, spec, capacity, options, traits, machine model) and what came out, so that a bug
// report can be replayed (`coppice inspect plan --replay`). Layer: attention, private.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attention/plan.h"

namespace coppice::attention {

// What a dump was made from; owns the forest's arrays.
struct PlanDump {
  AttentionSpec spec;
  PlanCapacity capacity;
  PlannerOptions options;
  BackendTraits traits;
  MachineModel machine;

  int32_t page_size = 16;
  uint64_t version = 0;
  std::vector<int32_t> node_parent, node_begin, node_end;
  std::vector<int32_t> branch_node, branch_query_begin, branch_query_count, branch_kv_len, branch_page_begin, branch_page_capacity;
  std::vector<int32_t> page_indices;
  std::vector<uint64_t> query_tree_mask;

  PrefixForestView Forest() const;
};

// The dump of the planner's last Update.
std::string DumpPlan(const Planner& planner);
// INVALID_ARGUMENT names the field that is missing or of the wrong type.
Result<PlanDump> ParsePlanDump(std::string_view json);
// A planner of the dump's own traits and machine, updated with its forest. Errors are those of Planner::Create and Update.
Result<std::unique_ptr<Planner>> ReplayPlan(const PlanDump& dump);

}  // namespace coppice::attention
