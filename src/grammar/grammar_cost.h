// What a grammar would cost, told from its text before anything is made of it: states that its automata would have, repeats written
// out. Compiling takes time and memory that follow from them. Knows no bound on time: compiling has its own. Layer: grammar.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice {

struct GrammarCost {
  // A character, a class or a reference to a rule is one. Those of a sequence and of alternatives add up, a repeat has as many
  // times its part's, and with repeats in repeats they multiply. A double, as they grow without bound.
  double states = 0;
  std::string_view largest_repeat;  // number in braces, in the text that was measured; empty: none

  void Add(const GrammarCost& part);
};

// Of a regular expression. A text that is none has some cost too.
GrammarCost RegexCost(std::string_view regex);
// Of a grammar in EBNF: of all its rules. A rule counts once, however many refer to it.
GrammarCost EbnfCost(std::string_view grammar);
// Of a JSON schema: its patterns, its bounds on lengths and numbers, and its own text. Names of properties are text; subschemas are
// rules. `schema` is not nested deeper than its reader allows (CheckGrammarSource).
GrammarCost SchemaCost(const nlohmann::json& schema);

// States that a source may have. Ordinary ones have some hundred; the worst ones that pass are ended while they compile.
inline constexpr double kMaxGrammarStates = 100'000;
// Times that one part of a regex or grammar, or an item or character of a schema, may be asked to repeat.
inline constexpr int64_t kMaxRepeats = 1000;

// INVALID_ARGUMENT names the bound that `cost` passes, the value found and what to do. `what`: "regex", "JSON schema".
Status CheckGrammarCost(std::string_view what, const GrammarCost& cost);
// That error for a part that is to be repeated `times`, more than kMaxRepeats.
Status TooManyRepeats(std::string_view what, std::string_view times);

}  // namespace coppice
