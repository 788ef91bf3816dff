// The strict JSON of core for files: one object, errors that name the file.
// Layer: model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice {

// `text` must be one JSON object; `path` names the source in messages; empty: the caller does. Errors as ParseJson (core/json.h),
// and INVALID_ARGUMENT for another value.
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& path);

}  // namespace coppice
