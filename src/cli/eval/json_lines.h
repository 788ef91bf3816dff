// Files of JSON objects, a line each. Layer: cli.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::cli {

// Calls use for the object of each line that is not empty; errors, its own too, get the line's number. INVALID_ARGUMENT for a file
// without any.
Status ForEachJsonLine(const std::string& text, const std::function<Status(const nlohmann::json&)>& use);

// The field of an object; INVALID_ARGUMENT if it is missing or of another type.
Status TakeText(const nlohmann::json& object, const char* key, std::string* value);
Status TakeTexts(const nlohmann::json& object, const char* key, std::vector<std::string>* values);

}  // namespace coppice::cli
