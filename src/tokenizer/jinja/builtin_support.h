// Common parts of the built-ins of chat templates: arguments and their checks. Layer: tokenizer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/unicode.h"

namespace coppice::jinja {

// Costs, in units of Meter.
inline constexpr size_t kPairUnits = 200;  // a key and a value in a list of their own

struct Entry {
  std::string_view name;
  Builtin function;
};

template <size_t kSize>
Builtin Find(const Entry (&table)[kSize], std::string_view name) {
  const auto found = std::find_if(std::begin(table), std::end(table), [name](const Entry& entry) { return entry.name == name; });
  return found == std::end(table) ? nullptr : found->function;
}

// The arguments by the order of `names`; undefined where absent. Fails if one of the first `required` is.
List Bind(const Interpreter& in, const Arguments& arguments, std::initializer_list<std::string_view> names, size_t required = 0);

// Fail if the value is of another type; `what` is for the message. RequireString: of texts that are only looked at.
const TracedText& RequireText(const Interpreter& in, const Value& value, const char* what);
const std::string& RequireString(const Interpreter& in, const Value& value, const char* what);
int64_t RequireInteger(const Interpreter& in, const Value& value, const char* what);
double RequireNumber(const Interpreter& in, const Value& value, const char* what);
const Dict& RequireDict(const Interpreter& in, const Value& value, const char* what);
// The same with `otherwise` for an argument that is absent or none.
int64_t IntegerOr(const Interpreter& in, const Value& value, int64_t otherwise, const char* what);
bool IsGiven(const Value& argument);

// Tuples of a key and its value.
List Pairs(Interpreter& in, const Dict& dict);
// str.replace; no count or one below 0 replaces all.
TracedText Replaced(Interpreter& in, const TracedText& text, const Arguments& arguments);
// str.strip
TracedText Stripped(const Interpreter& in, const TracedText& text, const Arguments& arguments, StripSides sides);
// str.capitalize
TracedText Capitalized(const TracedText& text);
// str.center
TracedText Centered(Interpreter& in, const TracedText& text, int64_t width, const TracedText& fill);
// The value of Python's float() for a text; false: there is none.
bool ParseFloat(std::string_view text, double* value);

}  // namespace coppice::jinja
