#include "grammar/grammar_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <span>

#include "core/check.h"

namespace coppice {
namespace {

using nlohmann::json;

Status CheckSize(const GrammarSource& source, size_t most) {
  if (source.text.empty()) return InvalidArgument(fmt::format("the {} is empty", Name(source.kind)));
  if (source.text.size() <= most) return OkStatus();
  return InvalidArgument(
      fmt::format("the {} has {} bytes, expected at most {}: make it shorter", Name(source.kind), source.text.size(), most));
}

Status RefuseRepeats(GrammarKind kind, std::string_view number) {
  return InvalidArgument(fmt::format("the {} repeats a part {} times, expected at most {}: bound the answer by max_tokens",
                                     Name(kind), number.substr(0, 30), kMaxRepeats));
}

// Numbers in braces: {3}, {3,}, {3,9}.
Status CheckRepeats(const GrammarSource& source) {
  const std::string_view text = source.text;
  for (size_t i = text.find('{'); i != text.npos; i = text.find('{', i + 1)) {
    for (size_t begin = i + 1; begin < text.size();) {
      const size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
      if (end == begin && text[begin] != ',') break;
      const std::string_view digits = text.substr(begin, end - begin);
      int64_t number = 0;
      const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (parsed.ec == std::errc::result_out_of_range || number > kMaxRepeats) return RefuseRepeats(source.kind, digits);
      begin = end + 1;
      if (end >= text.size() || text[end] != ',') break;
    }
  }
  return OkStatus();
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
    return RefuseRepeats(GrammarKind::kJsonSchema, value.dump());
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
  return CheckSchemaNode(schema, NodeKind::kSchema, 0);
}

// The schemas in a structural tag, each as if it were alone.
Status CheckTag(const json& node, size_t depth) {
  if (depth > kMaxSchemaDepth)
    return InvalidArgument(fmt::format("the structural tag nests deeper than {} levels outside its schemas", kMaxSchemaDepth));
  if (!node.is_structured()) return OkStatus();
  if (node.is_object() && node.value("type", json()) == "json_schema" && node.contains("json_schema"))
    return CheckSchemaNode(node["json_schema"], NodeKind::kSchema, 0);
  for (const json& child : node) COPPICE_RETURN_IF_ERROR(CheckTag(child, depth + 1));
  return OkStatus();
}

Status CheckStructuralTag(const GrammarSource& source) {
  COPPICE_RETURN_IF_ERROR(CheckSize(source, kMaxSchemaBytes));
  const json tag = json::parse(source.text, nullptr, /*allow_exceptions=*/false);
  if (!tag.is_object()) return InvalidArgument("the structural tag is no JSON object");
  return CheckTag(tag, 0);
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
  return CheckRepeats(source);
}

}  // namespace coppice
