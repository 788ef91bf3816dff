#include "tokenizer/jinja/builtin_support.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "tokenizer/utf8.h"

namespace coppice::jinja {

List Bind(const Interpreter& in, const Arguments& arguments, std::initializer_list<std::string_view> names, size_t required) {
  if (arguments.positional.size() > names.size()) {
    in.Fail(std::to_string(arguments.positional.size()) + " arguments; expected at most " + std::to_string(names.size()));
  }
  List bound = arguments.positional;
  bound.resize(names.size());
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name.bytes());
    if (found == names.end()) FailUnimplemented(in.position(), "argument '" + name.bytes() + "' is not supported");
    bound[static_cast<size_t>(found - names.begin())] = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound[i].Is<Undefined>()) in.Fail("argument '" + std::string(*(names.begin() + i)) + "' is missing or undefined");
  }
  return bound;
}

const TracedText& RequireText(const Interpreter& in, const Value& value, const char* what) {
  if (value.IsString()) return value.AsText();
  if (value.Is<Undefined>()) in.Fail("'" + value.As<Undefined>().name + "' is undefined; expected a string as " + what);
  in.Fail(std::string(what) + " is " + std::string(value.TypeName()) + "; expected a string");
}

const std::string& RequireString(const Interpreter& in, const Value& value, const char* what) {
  return RequireText(in, value, what).bytes();
}

int64_t RequireInteger(const Interpreter& in, const Value& value, const char* what) {
  if (!value.IsInteger()) in.Fail(std::string(what) + " is " + std::string(value.TypeName()) + "; expected an integer");
  return value.AsInteger();
}

double RequireNumber(const Interpreter& in, const Value& value, const char* what) {
  if (!value.IsNumber()) in.Fail(std::string(what) + " is " + std::string(value.TypeName()) + "; expected a number");
  return value.AsDouble();
}

const Dict& RequireDict(const Interpreter& in, const Value& value, const char* what) {
  if (!value.IsDict()) in.Fail(std::string(what) + " is " + std::string(value.TypeName()) + "; expected a dict");
  return value.AsDict();
}

bool IsGiven(const Value& argument) { return !argument.Is<Undefined>() && !argument.Is<None>(); }

int64_t IntegerOr(const Interpreter& in, const Value& value, int64_t otherwise, const char* what) {
  return IsGiven(value) ? RequireInteger(in, value, what) : otherwise;
}

List Pairs(Interpreter& in, const Dict& dict) {
  in.meter().Charge(dict.size(), kPairUnits);
  List pairs;
  for (const auto& [key, value] : dict) {
    in.meter().Charge(key.cost());
    pairs.emplace_back(Sequence::kTuple, List{key, value});
  }
  return pairs;
}

TracedText Replaced(Interpreter& in, const TracedText& text, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"old", "new", "count"}, 2);
  const std::string& from = RequireString(in, bound[0], "what to replace");
  const TracedText& to = RequireText(in, bound[1], "the replacement");
  int64_t left = IntegerOr(in, bound[2], -1, "the count of replacements");
  const std::string_view bytes = text.bytes();
  TracedText out;
  size_t at = 0;
  for (; left != 0; --left) {
    // An empty text is found before each character and at the end.
    const size_t found = FindText(bytes, from, at);
    if (found == std::string::npos) break;
    out.Append(text, bytes.substr(at, found - at));
    in.meter().Charge(to.cost() + 1);
    out.Append(to);
    at = found + from.size();
    if (!from.empty()) continue;
    if (at == bytes.size()) return out;
    const size_t length = DecodeUtf8(bytes.substr(at)).length;
    out.Append(text, bytes.substr(at, length));
    at += length;
  }
  out.Append(text, bytes.substr(at));
  return out;
}

TracedText Capitalized(const TracedText& text) {
  const std::string_view first = std::string_view(text.bytes()).substr(0, text.empty() ? 0 : DecodeUtf8(text.bytes()).length);
  TracedText out = text.Part(first).Mapped(ToUpper);
  out.Append(text.Part(std::string_view(text.bytes()).substr(first.size())).Mapped(ToLower));
  return out;
}

TracedText Stripped(const Interpreter& in, const TracedText& text, const Arguments& arguments, StripSides sides) {
  const List bound = Bind(in, arguments, {"chars"});
  return text.Part(
      Strip(text.bytes(), IsGiven(bound[0]) ? RequireString(in, bound[0], "the characters to strip") : std::string_view(), sides));
}

TracedText Centered(Interpreter& in, const TracedText& text, int64_t width, const TracedText& fill) {
  const auto length = static_cast<int64_t>(CountCharacters(text.bytes()));
  if (width <= length) return text;
  const auto missing = static_cast<size_t>(width - length);
  in.meter().Charge(missing, fill.cost());
  const size_t left = missing / 2 + (missing & static_cast<size_t>(width) & 1);
  TracedText out = TracedText::Repeated(fill, left);
  out.Append(text);
  out.Append(TracedText::Repeated(fill, missing - left));
  return out;
}

bool ParseFloat(std::string_view text, double* value) {
  text = Strip(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  std::string digits;  // without the underscores that Python allows between digits
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) {
      return false;
    }
  }
  const std::string lower = ToLower(digits);
  if (lower == "inf" || lower == "infinity" || lower == "nan") {
    *value = lower == "nan" ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else {
    if (digits.empty() || digits[0] == '-' || digits[0] == 'i' || digits[0] == 'n') return false;
    if (digits.size() > 1 && (digits[0] == 'I' || digits[0] == 'N')) return false;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *value);
    if (end != digits.data() + digits.size()) return false;
    if (error != std::errc()) *value = std::strtod(digits.c_str(), nullptr);  // out of range: infinite or 0, as in Python
  }
  if (negative) *value = -*value;
  return true;
}

}  // namespace coppice::jinja
