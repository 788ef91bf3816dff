// The body of GET /v1/tree: the prefix tree as it is now, how the last step read it, and the counters of steps that its readers
// make rates of; and of GET /v1/plan. Lengths and counts alone, no token. Layer: server.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "coppice/engine/engine.h"
#include "server/server_metrics.h"

namespace coppice::server {

// Everything there is.
nlohmann::ordered_json TreeResponse(const EngineMetrics& metrics, const ModelInfo& model);
// The nodes that only an API key's requests can reach, and its own counters: nothing that others' requests change. `tokens` are
// the key's.
nlohmann::ordered_json TreeResponseOf(const std::string& key, const EngineMetrics& metrics, const ModelInfo& model,
                                      const ServerMetrics::Tokens& tokens);

// The body of GET /v1/plan: how the plan of the last step, or one shortly before it, reads what samples have in common. Null: there
// was none.
nlohmann::ordered_json PlanResponse(const StepPlan* plan);

}  // namespace coppice::server
