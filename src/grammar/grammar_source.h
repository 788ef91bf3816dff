// What the text of an answer must look like, as users write it, and bounds on it: compiling takes time that follows from its size.
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

// Of what is compiled at most: the worst texts that we know take some seconds then, on the thread that parses the request.
inline constexpr size_t kMaxSchemaBytes = 65536, kMaxSchemaDepth = 32, kMaxGrammarBytes = 65536, kMaxRegexBytes = 512;
// Times that a part of a regex or grammar, or an item or character of a schema, may be asked to repeat.
inline constexpr int64_t kMaxRepeats = 1000;

// INVALID_ARGUMENT names the bound that the source passes, the value found and what to do.
Status CheckGrammarSource(const GrammarSource& source);

}  // namespace coppice
