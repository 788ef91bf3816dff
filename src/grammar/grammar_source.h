// What the text of an answer must look like, as users write it, and bounds on it that need no more than the text.
// Layer: grammar.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
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
  kStructuralTag,  // text and JSON schemas in turn, as XGrammar writes it: for layers above, whose users do not
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

// Of what is compiled at most; grammar_cost.h has the bounds on what the text stands for.
inline constexpr size_t kMaxSchemaBytes = 65536, kMaxSchemaDepth = 32, kMaxGrammarBytes = 65536, kMaxRegexBytes = 512;

// INVALID_ARGUMENT names the bound that the source passes, the value found and what to do.
Status CheckGrammarSource(const GrammarSource& source);

}  // namespace coppice
