// Strict JSON for files that come from elsewhere: no duplicate keys, bounded nesting, errors that name the file.
// Layer: model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice {

// Parses `text`, which must be one JSON object in UTF-8. DATA_LOSS says where the syntax breaks; INVALID_ARGUMENT names a key
// that an object holds twice, or says that the nesting is too deep. `path` names the source in messages.
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& path);

}  // namespace coppice
