// Python's text formatting: text % values, and str.format. Layer: tokenizer.
#pragma once

#include "tokenizer/jinja/builtins.h"

namespace coppice::jinja {

class Interpreter;

// text % values: a tuple has a value for each conversion, a dict one for each name, and any other value is the only one. Charges
// for what it writes, and throws Error where Python raises an exception. %a is not supported.
TracedText FormatPercent(Interpreter& interpreter, const TracedText& text, const Value& values);

// text.format(...), in the same way. Of the format specification the types c and n and the option z are not supported, nor is a
// precision of a float without a type.
TracedText FormatBraces(Interpreter& interpreter, const TracedText& text, const Arguments& arguments);

}  // namespace coppice::jinja
