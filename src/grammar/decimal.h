// Numbers of JSON as decimals of any length, and sets of texts that write a number between bounds. Layer: grammar.
#pragma once

#include <compare>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "coppice/core/status.h"
#include "grammar/automaton.h"

namespace coppice {

// A value type.
struct Decimal {
  bool negative = false;
  std::string whole, fraction;  // digits; no zeros lead the one or end the other, so that 0 has none at all

  // The shortest decimal that is the number. REQUIRES: `number` is one.
  static Decimal Of(const nlohmann::ordered_json& number);
  bool is_zero() const { return whole.empty() && fraction.empty(); }

  friend bool operator==(const Decimal&, const Decimal&) = default;
  friend std::strong_ordering operator<=>(const Decimal& a, const Decimal& b);
};

struct NumberBound {
  Decimal value;
  bool exclusive = false;

  friend bool operator==(const NumberBound&, const NumberBound&) = default;
};

struct NumberSet {
  std::optional<NumberBound> least, most;
  bool whole = false;    // integers alone
  int64_t multiple = 1;  // with `whole`: of it

  bool Contains(const Decimal& number) const;
};

// Texts of the numbers of the set, without exponents. Where there are bounds, a text has so few digits that numbers of different
// texts are different ones for programs that read them as doubles; where a bound has more digits than a double, numbers are written
// far within it. INVALID_ARGUMENT: a bound leaves none of these, or the automaton is too large.
Result<Automaton> NumberTexts(const NumberSet& set);

}  // namespace coppice
