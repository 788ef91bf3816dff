// The parts of a request's body whose order its answer depends on: the tools, which the model sees as the client wrote them, and
// the schema of the answer, whose members come in its order. Layer: openai.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/dismantle_json.h"
#include "openai/body_error.h"
#include "openai/request.h"

namespace coppice::openai {

struct OrderedParts {
  std::optional<DismantledJson<nlohmann::ordered_json>> tools;  // ToolsInOrder; nothing: the body has none
  std::string schema;                                           // ResponseSchemaInOrder

  const nlohmann::ordered_json* tools_or_null() const { return tools ? &**tools : nullptr; }
};

// Of `body`, which lies at the end of `path` in `text`. On an error, `error->param` names the field.
std::optional<OrderedParts> ReadOrderedParts(Endpoint endpoint, const nlohmann::json& body, std::string_view text, BodyError* error,
                                             std::span<const std::string_view> path = {});

}  // namespace coppice::openai
