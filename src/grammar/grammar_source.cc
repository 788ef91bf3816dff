#include "grammar/grammar_source.h"

#include <fmt/format.h>

#include "core/check.h"
#include "grammar/grammar_cost.h"
#include "grammar/json_schema_grammar.h"

namespace coppice {
namespace {

Status CheckSize(const GrammarSource& source, size_t most) {
  if (source.text.empty()) return InvalidArgument(fmt::format("the {} is empty", Name(source.kind)));
  if (source.text.size() <= most) return OkStatus();
  return InvalidArgument(
      fmt::format("the {} has {} bytes, expected at most {}: make it shorter", Name(source.kind), source.text.size(), most));
}

}  // namespace

Status CheckGrammarSource(const GrammarSource& source) {
  switch (source.kind) {
    case GrammarKind::kJson:
    case GrammarKind::kJsonObject: return OkStatus();
    case GrammarKind::kJsonSchema: return SchemaGrammar(source).status();
    case GrammarKind::kStructuralTag: return CheckSize(source, kMaxTagBytes);
    case GrammarKind::kRegex:
    case GrammarKind::kEbnf: break;
  }
  const size_t most = source.kind == GrammarKind::kRegex ? kMaxRegexBytes : kMaxGrammarBytes;
  COPPICE_RETURN_IF_ERROR(CheckSize(source, most));
  return CheckGrammarCost(Name(source.kind), source.kind == GrammarKind::kRegex ? RegexCost(source.text) : EbnfCost(source.text));
}

Result<std::string> SchemaGrammar(const GrammarSource& source) {
  if (source.kind == GrammarKind::kJson) return JsonSchemaTextGrammar("true");
  if (source.kind == GrammarKind::kJsonObject) return JsonSchemaTextGrammar(R"({"type": "object"})");
  COPPICE_CHECK(source.kind == GrammarKind::kJsonSchema);
  COPPICE_RETURN_IF_ERROR(CheckSize(source, kMaxSchemaBytes));
  Result<std::string> grammar = JsonSchemaTextGrammar(source.text);
  if (!grammar.ok()) return InvalidArgument(fmt::format("the JSON schema cannot be used: {}", grammar.status().message()));
  return grammar;
}

}  // namespace coppice
