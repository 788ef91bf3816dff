// Sources of grammars: the form of an answer's text, as users write it, and bounds on it that need no more than the text.
// Layer: grammar.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice {

enum class GrammarKind : uint8_t {
  kJson,           // any JSON value; no text
  kJsonObject,     // any JSON object; no text
  kJsonSchema,     // a JSON schema
  kRegex,          // a regular expression that the whole answer matches
  kEbnf,           // a grammar in EBNF whose rule `root` is the answer
  kStructuralTag,  // text and grammars in turn, as XGrammar writes it: for layers above, whose users do not
};
constexpr std::string_view Name(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJson: return "JSON";
    case GrammarKind::kJsonObject: return "JSON object";
    case GrammarKind::kJsonSchema: return "JSON schema";
    case GrammarKind::kRegex: return "regex";
    case GrammarKind::kEbnf: return "grammar";
    case GrammarKind::kStructuralTag: return "structural tag";
  }
  return "?";
}

struct GrammarSource {
  GrammarKind kind = GrammarKind::kJson;
  std::string text;
};

// Of what is compiled at most; grammar_cost.h has the bounds on what regexes and grammars stand for, json_schema_grammar.h those on
// schemas.
inline constexpr size_t kMaxSchemaBytes = 65536, kMaxGrammarBytes = 65536, kMaxRegexBytes = 512, kMaxTagBytes = size_t{4} << 20;

// Kinds that JSON schemas say.
constexpr bool IsOfSchema(GrammarKind kind) {
  return kind == GrammarKind::kJson || kind == GrammarKind::kJsonObject || kind == GrammarKind::kJsonSchema;
}

// INVALID_ARGUMENT names the bound that the source passes, the value found and what to do; of a JSON schema, all that is wrong with
// it. The parts of a structural tag are checked before they are put together: of the tag, its size is.
Status CheckGrammarSource(const GrammarSource& source);
// The grammar of a JSON schema, of any JSON or of any object (json_schema_grammar.h). REQUIRES: `source` is of such a kind.
Result<std::string> SchemaGrammar(const GrammarSource& source);

}  // namespace coppice
