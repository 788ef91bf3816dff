// vLLM's field structured_outputs: what the output must look like, by one of several ways to say it. Layer: openai.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "grammar/grammar_source.h"
#include "openai/field_reader.h"

namespace coppice::openai {

// One of regex, json (a schema, or its text), json_object, choice (a list of strings) and grammar (EBNF). `schema_in_order`: the
// text of `json` with its members in their order, if that is known. Nothing: the body asks for none.
std::optional<GrammarSource> TakeStructuredOutputs(FieldReader& fields, const std::string& schema_in_order);

// A grammar in EBNF whose output is one of the texts.
std::string ChoiceGrammar(std::span<const std::string> choices);

}  // namespace coppice::openai
