// The description of the routes, src/server/openapi.json as it was at build. Layer: server.
#pragma once

#include <string_view>

namespace coppice::server {

std::string_view OpenApiDocument();

}  // namespace coppice::server
