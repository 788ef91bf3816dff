#include "openai/prefixes_by_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/json.h"
#include "core/quoted.h"

namespace coppice::openai {

using nlohmann::json;

Result<FindNamedPrefix> ParsePrefixesByName(std::string_view text, const std::string& path, const OpenAiRequestParser& parser) {
  const Result<json> bodies = ParseJson(text);
  if (!bodies.ok()) return InvalidArgument(fmt::format("{} {}", path, bodies.status().message()));
  if (!bodies->is_object())
    return InvalidArgument(fmt::format("{} holds no object, expected one such as {{\"name\": {{\"messages\": [...]}}}}", path));
  // Tools come before the model in the order that the file gives their members.
  const auto has_tools = [](const json& body) { return body.is_object() && body.contains("tools"); };
  Result<nlohmann::ordered_json> ordered = nlohmann::ordered_json();
  if (std::ranges::any_of(*bodies, has_tools)) ordered = ParseOrderedJson(text);
  if (!ordered.ok()) return InvalidArgument(fmt::format("{}, where prefixes have tools, {}", path, ordered.status().message()));
  auto prefixes = std::make_shared<std::map<std::string, std::shared_ptr<const NamedPrefix>>>();
  for (const auto& [name, body] : bodies->items()) {
    const auto wrong = [&, &name = name](const Status& status) {
      return InvalidArgument(fmt::format("{}, prefix {}: {}", path, Quoted(name), status.message()));
    };
    if (const Status named = CheckPrefixName(name); !named.ok()) return wrong(named);
    BodyError error;
    std::optional<NamedPrefix> prefix = ParseNamedPrefix(body, &error, has_tools(body) ? &(*ordered)[name]["tools"] : nullptr);
    if (!prefix) return wrong(error.status);
    if (prefix->ttl_seconds) return wrong(InvalidArgument("ttl_seconds is for servers; leave it out"));
    std::optional<std::vector<int32_t>> ids = parser.EncodePrefix(*prefix, &error);
    if (!ids) return wrong(error.status);
    prefix->token_ids = *std::move(ids);
    prefixes->emplace(name, std::make_shared<const NamedPrefix>(*std::move(prefix)));
  }
  return FindNamedPrefix([prefixes](const std::string& name) {
    const auto found = prefixes->find(name);
    return found == prefixes->end() ? nullptr : found->second;
  });
}

}  // namespace coppice::openai
