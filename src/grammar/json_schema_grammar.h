// JSON schemas as grammars: what the grammar writes satisfies the schema, for validators of any draft from 4 to 2020-12.
//
// Its texts are a part of those that satisfy the schema (docs/server.md lists the limits): members in the order of the schema,
// those that it does not list after them and only where it speaks of them, white space of kMaxWhiteSpace characters at most, and
// one spelling of characters where a pattern, a format or a name counts. A schema that cannot be followed so is refused.
// Layer: grammar.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice {

// The grammar in XGrammar's EBNF, whose rule `root` is the value. INVALID_ARGUMENT names the keyword that is wrong or not supported
// by its place in the schema, such as "#/properties/a/uniqueItems", or says that no value satisfies the schema. Takes time in
// proportion to the grammar's size, which is bounded.
Result<std::string> JsonSchemaGrammar(const nlohmann::ordered_json& schema);
// Of a schema's text.
Result<std::string> JsonSchemaTextGrammar(std::string_view text);

}  // namespace coppice
