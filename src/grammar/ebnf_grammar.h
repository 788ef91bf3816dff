// A grammar as it is built, rule by rule, and its text in XGrammar's EBNF. Layer: grammar.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/char_set.h"

namespace coppice {

class EbnfGrammar {
 public:
  using RuleId = int32_t;

  // A text, one character of a set or a rule; some number of times.
  struct Symbol {
    enum class Kind : uint8_t { kText, kCharacters, kRule } kind;
    std::string text;
    CharSet characters;
    RuleId rule = -1;
    int64_t least = 1;
    std::optional<int64_t> most = 1;  // nothing: any number

    Symbol(std::string what) : kind(Kind::kText), text(std::move(what)) {}  // NOLINT(google-explicit-constructor): {"a", rule}
    Symbol(const char* what) : kind(Kind::kText), text(what) {}             // NOLINT(google-explicit-constructor)
    Symbol(CharSet what) : kind(Kind::kCharacters), characters(std::move(what)) {}  // NOLINT(google-explicit-constructor)
    Symbol(RuleId what) : kind(Kind::kRule), rule(what) {}                          // NOLINT(google-explicit-constructor)
    // REQUIRES: no text.
    Symbol Repeated(int64_t at_least, std::optional<int64_t> at_most = std::nullopt) const {
      Symbol symbol = *this;
      symbol.least = at_least;
      symbol.most = at_most;
      return symbol;
    }
  };
  using Sequence = std::vector<Symbol>;

  struct Rule {
    std::vector<Sequence> alternatives;
    // EBNF of the text behind the rule, wherever it stands; empty: not stated. Tokens that go on behind the rule's end are then
    // checked in advance, instead of one by one while an answer is written.
    std::string_view followed_by;
    // Characters that it takes at most. Where it cannot end after so many, it goes on until it can.
    std::optional<int64_t> max_characters;
  };

  // Symbols and rules of everything that is built at most.
  static constexpr size_t kMaxSymbols = 200000;

  RuleId AddRule() {
    rules_.emplace_back();
    return static_cast<RuleId>(rules_.size()) - 1;
  }
  RuleId AddRule(Rule rule) {
    const RuleId id = AddRule();
    rules_[id] = std::move(rule);
    return id;
  }
  void Define(RuleId id, Rule rule) { rules_[id] = std::move(rule); }
  bool too_large() const;

  // Leaves out what no text of finite length completes. Whether `root` is left.
  bool Prune(RuleId root);
  // REQUIRES: Prune(root).
  std::string Text(RuleId root) const;

 private:
  // Whether a text completes it once, or as often as it asks for.
  bool IsThere(const Symbol& symbol) const;
  bool IsProductive(const Symbol& symbol) const;

  std::vector<Rule> rules_;
  std::vector<bool> productive_;
};

}  // namespace coppice
