// The cost of a regex or grammar, by its text, before anything is made of it: states that its automata would have,
// repeats written out. Compiling takes time and memory that follow from them. Knows no bound on time: compiling has its own. Layer:
// grammar.
#pragma once

#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice {

struct GrammarCost {
  // A character, a class or a reference to a rule is one. Those of a sequence and of alternatives add up, a repeat has as many
  // times its part's, and with repeats in repeats they multiply. A double, as they grow without bound.
  double states = 0;
  std::string_view largest_repeat;  // number in braces, in the text that was measured; empty: none
};

// Of a regular expression. A text that is none has some cost too.
GrammarCost RegexCost(std::string_view regex);
// Of a grammar in EBNF: of all its rules. A rule counts once, however many refer to it.
GrammarCost EbnfCost(std::string_view grammar);

// States that a source may have. Ordinary ones have some hundred; the worst ones that pass are ended while they compile.
inline constexpr double kMaxGrammarStates = 100'000;
// Times that one part of a regex or grammar may be asked to repeat.
inline constexpr int64_t kMaxRepeats = 1000;

// INVALID_ARGUMENT names the bound that `cost` passes, the value found and what to do. `what`: "regex", "grammar".
Status CheckGrammarCost(std::string_view what, const GrammarCost& cost);

}  // namespace coppice
