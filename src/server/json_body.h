// The body of a request, parsed. Layer: server.
#pragma once

#include <nlohmann/json.hpp>

#include "core/dismantle_json.h"
#include "openai/ordered_parts.h"

namespace coppice::server {

// Of a hostile client, perhaps: as large as a body may be, many containers.
struct JsonBody {
  DismantledJson<nlohmann::json> json;
  openai::OrderedParts ordered = {};
};

}  // namespace coppice::server
