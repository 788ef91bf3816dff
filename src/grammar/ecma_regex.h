// Regular expressions of ECMA-262 (with its flag u), as `pattern` of JSON schemas has them, as automata over the texts that have a
// match anywhere in them. Dialects differ, and validators written in other languages use their own: so there are two readings.
// Layer: grammar.
#pragma once

#include <cstdint>
#include <string_view>

#include "coppice/core/status.h"
#include "grammar/automaton.h"

namespace coppice {

enum class RegexReading : uint8_t {
  kAgreed,    // texts that match in every usual dialect: what is written where a match is asked for
  kPossible,  // texts that match in any of them: what is not written where none is allowed
};

// INVALID_ARGUMENT says what is wrong with the expression or not supported: back references, assertions but for ^, $ and lookahead
// right behind a leading ^, properties of Unicode, and expressions whose automaton is too large.
Result<Automaton> ParseEcmaRegex(std::string_view regex, RegexReading reading);

}  // namespace coppice
