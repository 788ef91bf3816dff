#include "openai/ordered_parts.h"

#include <utility>

namespace coppice::openai {

std::optional<OrderedParts> ReadOrderedParts(Endpoint endpoint, const nlohmann::json& body, std::string_view text, BodyError* error,
                                             std::span<const std::string_view> path) {
  const auto fail = [error](const std::string& field, const Status& status) {
    *error = {InvalidArgument(field + ": " + status.message()), field};
    return std::nullopt;
  };
  OrderedParts parts;
  if (!body.is_object()) return parts;
  const bool is_responses = endpoint == Endpoint::kResponses;
  if (body.contains(is_responses ? "text" : "response_format") || body.contains("structured_outputs")) {
    Result<std::string> schema = ResponseSchemaInOrder(text, path, endpoint);
    if (!schema.ok()) return fail(is_responses ? "text.format" : "response_format", schema.status());
    parts.schema = *std::move(schema);
  }
  if (!body.contains("tools")) return parts;
  Result<nlohmann::ordered_json> tools = ToolsInOrder(text, path);
  if (!tools.ok()) return fail("tools", tools.status());
  parts.tools.emplace(*std::move(tools));
  return parts;
}

}  // namespace coppice::openai
