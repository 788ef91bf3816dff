// The body of GET /v1/tree: the prefix tree as it is now, and the counters of steps that its readers make rates of. Lengths and
// counts alone, no token.
// Layer: server.
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

}  // namespace coppice::server
