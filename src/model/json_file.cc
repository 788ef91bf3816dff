#include "model/json_file.h"

#include <fmt/format.h>

#include <utility>

#include "core/dismantle_json.h"
#include "core/json.h"

namespace coppice {

Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& path) {
  const std::string source = path.empty() ? "" : path + ": ";
  Result<nlohmann::json> json = ParseJson(text);
  if (!json.ok()) return Status(json.status().code(), source + json.status().message());
  if (!json->is_object()) {
    const DismantledJson<nlohmann::json> other(*std::move(json));
    return InvalidArgument(fmt::format("{}expected a JSON object, found {}", source, other->type_name()));
  }
  return json;
}

}  // namespace coppice
