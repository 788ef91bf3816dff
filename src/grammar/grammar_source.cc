#include "grammar/grammar_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "core/check.h"
#include "grammar/grammar_cost.h"

namespace coppice {
namespace {

using nlohmann::json;

Status CheckSize(const GrammarSource& source, size_t most) {
  if (source.text.empty()) return InvalidArgument(fmt::format("the {} is empty", Name(source.kind)));
  if (source.text.size() <= most) return OkStatus();
  return InvalidArgument(
      fmt::format("the {} has {} bytes, expected at most {}: make it shorter", Name(source.kind), source.text.size(), most));
}

// Keywords that would be left out of account.
constexpr std::string_view kUnsupported[] = {
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "uniqueItems", "contains", "minContains", "maxContains"};
// Bounds that repeat a character, an item or a property.
constexpr std::string_view kBounds[] = {"maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"};
// Keywords whose value holds schemas by names of the user's, and those whose value is no schema.
constexpr std::string_view kNamed[] = {"properties", "patternProperties", "$defs", "definitions"};
constexpr std::string_view kValues[] = {"enum", "const", "default", "examples"};

bool IsAmong(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

Status CheckKeyword(std::string_view name, const json& value) {
  if (IsAmong(name, kUnsupported))
    return InvalidArgument(
        fmt::format("the JSON schema uses {}, which is not supported: leave it out, and check the answer", name));
  if (IsAmong(name, kBounds) && value.is_number() && value.get<double>() > static_cast<double>(kMaxRepeats))
    return TooManyRepeats(Name(GrammarKind::kJsonSchema), value.dump());
  if (name == "pattern" && value.is_string()) return CheckGrammarSource({GrammarKind::kRegex, value.get<std::string>()});
  return OkStatus();
}

enum class NodeKind : uint8_t { kSchema, kNamedSchemas, kValue };

Status CheckSchemaNode(const json& node, NodeKind kind, size_t depth) {
  if (depth > kMaxSchemaDepth)
    return InvalidArgument(fmt::format("the JSON schema nests deeper than {} levels: flatten it", kMaxSchemaDepth));
  if (!node.is_structured()) return OkStatus();
  for (const auto& [name, value] : node.items()) {
    NodeKind child = kind == NodeKind::kValue ? NodeKind::kValue : NodeKind::kSchema;
    if (kind == NodeKind::kSchema && node.is_object()) {
      COPPICE_RETURN_IF_ERROR(CheckKeyword(name, value));
      if (IsAmong(name, kNamed)) child = NodeKind::kNamedSchemas;
      if (IsAmong(name, kValues)) child = NodeKind::kValue;
    }
    COPPICE_RETURN_IF_ERROR(CheckSchemaNode(value, child, depth + 1));
  }
  return OkStatus();
}

Status CheckSchema(const GrammarSource& source) {
  COPPICE_RETURN_IF_ERROR(CheckSize(source, kMaxSchemaBytes));
  // This parser does not recurse, so depth is bounded before anybody walks the value.
  const json schema = json::parse(source.text, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) return InvalidArgument("the JSON schema is no valid JSON");
  if (!schema.is_object() && !schema.is_boolean())
    return InvalidArgument(fmt::format("the JSON schema is a JSON {}, expected an object", schema.type_name()));
  COPPICE_RETURN_IF_ERROR(CheckSchemaNode(schema, NodeKind::kSchema, 0));
  return CheckGrammarCost(Name(source.kind), SchemaCost(schema));
}

// The schemas, regexes and grammars in a structural tag; what they cost together.
Status CheckTag(const json& node, size_t depth, GrammarCost* cost) {
  if (depth > kMaxSchemaDepth)
    return InvalidArgument(fmt::format("the structural tag nests deeper than {} levels outside its schemas", kMaxSchemaDepth));
  if (!node.is_structured()) return OkStatus();
  if (node.is_object() && node.value("type", json()) == "json_schema" && node.contains("json_schema")) {
    COPPICE_RETURN_IF_ERROR(CheckSchemaNode(node["json_schema"], NodeKind::kSchema, 0));
    cost->Add(SchemaCost(node["json_schema"]));
    return OkStatus();
  }
  for (const auto& [name, child] : node.items()) {
    if (name == "pattern" && child.is_string()) cost->Add(RegexCost(child.get_ref<const std::string&>()));
    if (name == "grammar" && child.is_string()) cost->Add(EbnfCost(child.get_ref<const std::string&>()));
    COPPICE_RETURN_IF_ERROR(CheckTag(child, depth + 1, cost));
  }
  return OkStatus();
}

Status CheckStructuralTag(const GrammarSource& source) {
  COPPICE_RETURN_IF_ERROR(CheckSize(source, kMaxSchemaBytes));
  const json tag = json::parse(source.text, nullptr, /*allow_exceptions=*/false);
  if (!tag.is_object()) return InvalidArgument("the structural tag is no JSON object");
  GrammarCost cost;
  COPPICE_RETURN_IF_ERROR(CheckTag(tag, 0, &cost));
  return CheckGrammarCost(Name(source.kind), cost);
}

}  // namespace

Status CheckGrammarSource(const GrammarSource& source) {
  switch (source.kind) {
    case GrammarKind::kJson:
    case GrammarKind::kJsonObject: return OkStatus();
    case GrammarKind::kJsonSchema: return CheckSchema(source);
    case GrammarKind::kStructuralTag: return CheckStructuralTag(source);
    case GrammarKind::kRegex:
    case GrammarKind::kEbnf: break;
  }
  const size_t most = source.kind == GrammarKind::kRegex ? kMaxRegexBytes : kMaxGrammarBytes;
  COPPICE_RETURN_IF_ERROR(CheckSize(source, most));
  return CheckGrammarCost(Name(source.kind), source.kind == GrammarKind::kRegex ? RegexCost(source.text) : EbnfCost(source.text));
}

}  // namespace coppice
