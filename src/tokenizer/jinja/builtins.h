// The filters, tests, functions and methods of chat templates: four tables of one kind of function. Filters are in
// filters.cc, methods in methods.cc. Layer: tokenizer.
#pragma once

#include <string_view>

#include "tokenizer/jinja/value.h"

namespace coppice::jinja {

class Interpreter;

struct Arguments {
  List positional;
  Dict named;
};

// `object` is what a filter or test is applied to and what a method belongs to; undefined for functions. Errors go through
// Interpreter::Fail, which adds the position.
using Builtin = Value (*)(Interpreter& interpreter, const Value& object, const Arguments& arguments);

// Null: there is none of that name.
Builtin FindFilter(std::string_view name);
Builtin FindTest(std::string_view name);
Builtin FindFunction(std::string_view name);
Builtin FindMethod(std::string_view name);
// Values of that type have the method, and the sandbox lets templates have it.
bool IsMethod(const Value& object, std::string_view name);

}  // namespace coppice::jinja
