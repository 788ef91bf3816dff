// Values of `format` in JSON schemas, as sets of texts. Layer: grammar.
#pragma once

#include <optional>
#include <string_view>

#include "coppice/core/status.h"
#include "grammar/automaton.h"

namespace coppice {

// Texts that every usual validator takes for the format: a part of those that the format has, where it has unusual ones.
struct StringFormat {
  Automaton texts;
  LengthRange length;  // which the automaton does not count
};

// Nothing: texts of the format are any, or the name says something of numbers. INVALID_ARGUMENT: `name` is no format that is known
// here. Computed once in a process; thread-safe.
Result<std::optional<StringFormat>> FindStringFormat(std::string_view name);

}  // namespace coppice
