// The body of GET /v1/tree: the prefix tree as it is now, and the counters of steps that its readers make rates of. Lengths and
// counts alone, no token.
// Layer: server.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "coppice/engine/engine.h"

namespace coppice::server {

nlohmann::ordered_json TreeResponse(const EngineMetrics& metrics, const ModelInfo& model);

}  // namespace coppice::server
