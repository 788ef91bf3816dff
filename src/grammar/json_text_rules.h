// Rules for the parts of JSON text that hold no other values: white space, strings of given characters and lengths, numbers.
// Layer: grammar.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "grammar/automaton.h"
#include "grammar/ebnf_grammar.h"

namespace coppice {

// White space between two tokens has so many characters at most: a small model can go on with it to the end of its context.
inline constexpr int kMaxWhiteSpace = 32;
// Characters of a string, items of an array and members of an object that a schema may ask for.
inline constexpr int64_t kMaxSchemaCount = 100000;

// Adds rules to a grammar, which outlives it; each once.
class JsonTextRules {
 public:
  using RuleId = EbnfGrammar::RuleId;

  explicit JsonTextRules(EbnfGrammar* grammar) : grammar_(*grammar) {}

  RuleId WhiteSpace();
  // Any number, of at most three digits in an exponent; or any integer.
  RuleId Number(bool whole);
  // A string, quotation marks included, whose value has `length` characters out of `characters`.
  RuleId String(const CharSet& characters, const LengthRange& length);
  // One whose value is among `texts`. INVALID_ARGUMENT: characters of the texts would have to be counted, and there are too many.
  Result<RuleId> String(const Automaton& texts, const LengthRange& length);
  // Texts that an automaton over the characters of JSON text accepts: no string.
  RuleId Plain(const Automaton& texts) { return texts.empty() ? grammar_.AddRule() : StatesOf(texts, End::kPlain); }

 private:
  // How the text of a string goes on behind some of its characters.
  // With the quotation mark, or before it; kPlain: it is no string.
  enum class End : uint8_t { kQuote, kNothing, kPlain };

  // The ways to write one character, each followed by `then`.
  void AppendCharacter(const CharSet& characters, EbnfGrammar::Symbol then, EbnfGrammar::Rule* rule);
  // Any character, as escape of four digits and more.
  RuleId Escape();
  // Any number of characters.
  RuleId Unbounded(const CharSet& characters, End end);
  // At most `count` of them, which is small, and at least `least`.
  RuleId Counted(const CharSet& characters, int64_t least, int64_t count);
  // At most `most`: characters of the text, of which a value that is escaped has more than characters of its own.
  RuleId Budgeted(const CharSet& characters, int64_t most);
  RuleId Required(const CharSet& characters, int64_t count, RuleId then);
  // How the text goes on in each state of an automaton, and that of its first one: once for equal automata.
  RuleId StatesOf(const Automaton& texts, End end);
  RuleId Quoted(RuleId inside);

  EbnfGrammar& grammar_;
  std::optional<RuleId> white_space_, escape_;
  std::array<std::optional<RuleId>, 2> numbers_;
  using Key = std::tuple<std::vector<std::pair<char32_t, char32_t>>, int, int64_t, int64_t>;
  std::map<Key, RuleId> made_;
  std::map<std::pair<std::vector<uint32_t>, End>, RuleId> made_states_;
};

}  // namespace coppice
