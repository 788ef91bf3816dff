#include "tokenizer/jinja/builtins.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <initializer_list>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/unicode.h"
#include "tokenizer/utf8.h"

namespace coppice::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as in Jinja's sandbox
constexpr size_t kNewTextUnits = 100;   // of Meter: a string of its own
constexpr size_t kPairUnits = 200;      // of Meter: a key and a value in a list of their own

struct Entry {
  std::string_view name;
  Builtin function;
};

template <size_t kSize>
Builtin Find(const Entry (&table)[kSize], std::string_view name) {
  const auto found = std::find_if(std::begin(table), std::end(table), [name](const Entry& entry) { return entry.name == name; });
  return found == std::end(table) ? nullptr : found->function;
}

// The arguments by the order of `names`; undefined where absent.
List Bind(const Interpreter& in, const Arguments& arguments, std::initializer_list<std::string_view> names, size_t required = 0) {
  if (arguments.positional.size() > names.size()) {
    in.Fail(std::to_string(arguments.positional.size()) + " arguments; expected at most " + std::to_string(names.size()));
  }
  List bound = arguments.positional;
  bound.resize(names.size());
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) FailUnimplemented(in.position(), "argument '" + name + "' is not supported");
    bound[static_cast<size_t>(found - names.begin())] = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound[i].Is<Undefined>()) in.Fail("argument '" + std::string(*(names.begin() + i)) + "' is missing or undefined");
  }
  return bound;
}

const std::string& RequireString(const Interpreter& in, const Value& value, const char* what) {
  if (value.IsString()) return value.AsString();
  if (value.Is<Undefined>()) in.Fail("'" + value.As<Undefined>().name + "' is undefined; expected a string as " + what);
  in.Fail(std::string(what) + " is " + std::string(value.TypeName()) + "; expected a string");
}

int64_t RequireInteger(const Interpreter& in, const Value& value, const char* what) {
  if (!value.IsInteger()) in.Fail(std::string(what) + " is " + std::string(value.TypeName()) + "; expected an integer");
  return value.AsInteger();
}

const Dict& RequireDict(const Interpreter& in, const Value& value, const char* what) {
  if (!value.IsDict()) in.Fail(std::string(what) + " is " + std::string(value.TypeName()) + "; expected a dict");
  return value.AsDict();
}

List Pairs(Interpreter& in, const Dict& dict) {
  in.meter().Charge(dict.size(), kPairUnits);
  List pairs;
  for (const auto& [key, value] : dict) pairs.push_back(List{key, value});
  return pairs;
}

std::string Replaced(Interpreter& in, const std::string& text, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"old", "new"}, 2);
  const std::string& from = RequireString(in, bound[0], "what to replace");
  const std::string& to = RequireString(in, bound[1], "the replacement");
  if (from.empty()) in.Fail("the text to replace is empty");
  std::string out;
  for (size_t at = 0;;) {
    const size_t found = FindText(text, from, at);
    out.append(text, at, found - at);
    if (found == std::string::npos) return out;
    in.meter().Charge(to.size());
    out += to;
    at = found + from.size();
  }
}

std::string Capitalized(std::string_view text) {
  const auto characters = Characters(text);
  return characters.empty() ? std::string() : ToUpper(characters[0]) + ToLower(text.substr(characters[0].size()));
}

std::string Stripped(const Interpreter& in, std::string_view text, const Arguments& arguments, StripSides sides) {
  const List bound = Bind(in, arguments, {"chars"});
  const bool has_set = !bound[0].Is<Undefined>() && !bound[0].Is<None>();
  return std::string(Strip(text, has_set ? RequireString(in, bound[0], "the characters to strip") : std::string_view(), sides));
}

Value Length(Interpreter& in, const Value& object) {
  if (object.IsString()) return static_cast<int64_t>(CountCharacters(object.AsString()));
  if (object.IsList()) return static_cast<int64_t>(object.AsList().size());
  if (object.Is<Undefined>()) return int64_t{0};
  return static_cast<int64_t>(RequireDict(in, object, "the object of 'length'").size());
}

// `value` is attribute.of.it, as map and selectattr name it.
Value Attribute(Interpreter& in, const Value& value, std::string_view path) {
  in.meter().Charge(sizeof(Value) + path.size());
  const size_t dot = path.find('.');
  const std::string_view name = path.substr(0, dot);
  const Value* found = value.IsDict() ? FindField(value.AsDict(), name, in.meter()) : nullptr;
  if (found == nullptr) return Undefined{std::string(name)};
  return dot == std::string_view::npos ? *found : Attribute(in, *found, path.substr(dot + 1));
}

// What map, select and their kin run over. Jinja runs them when the result is read, and there are templates that apply them to
// none and never read it.
List ElementsOrNone(Interpreter& in, const Value& object) { return object.Is<None>() ? List() : in.Elements(object); }

// select, reject, selectattr, rejectattr: [attribute,] [test, its arguments...]
Value Select(Interpreter& in, const Value& object, const Arguments& arguments, bool by_attribute, bool wanted) {
  List rest = arguments.positional;
  const auto take_first = [&](const char* what) {
    if (rest.empty()) in.Fail(std::string(what) + " is missing");
    const std::string text = RequireString(in, rest[0], what);
    rest.erase(rest.begin());
    return text;
  };
  const std::string attribute = by_attribute ? take_first("the attribute's name") : std::string();
  Builtin test = nullptr;
  if (!rest.empty()) {
    const std::string name = take_first("the test's name");
    test = FindTest(name);
    if (test == nullptr) FailUnimplemented(in.position(), "test '" + name + "' is not supported");
  }
  List kept;
  for (const Value& item : ElementsOrNone(in, object)) {
    in.meter().Charge(sizeof(Value) * (1 + rest.size()));
    const Value subject = by_attribute ? Attribute(in, item, attribute) : item;
    const Value result = test == nullptr ? subject : in.Invoke(test, subject, {rest, {}});
    if (result.Truthy() == wanted) kept.push_back(item);
  }
  return kept;
}

// Filters

Value FilterDefault(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"default_value", "boolean"});
  const bool absent = object.Is<Undefined>() || (bound[1].Truthy() && !object.Truthy());
  if (!absent) return object;
  return bound[0].Is<Undefined>() ? Value("") : bound[0];
}

Value FilterJoin(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"d", "attribute"});
  const std::string separator = bound[0].ToText(in.meter());
  std::string out;
  bool first = true;
  for (const Value& item : in.Elements(object)) {
    const std::string text = (bound[1].IsString() ? Attribute(in, item, bound[1].AsString()) : item).ToText(in.meter());
    in.meter().Charge(separator.size() + text.size());
    if (!std::exchange(first, false)) out += separator;
    out += text;
  }
  return out;
}

// With the arguments that Hugging Face transformers gives it.
Value FilterToJson(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  if (bound[0].Truthy()) FailUnimplemented(in.position(), "tojson with ensure_ascii is not supported");
  JsonStyle style = {.sort_keys = bound[3].Truthy()};
  if (!bound[1].Is<Undefined>() && !bound[1].Is<None>()) {
    const int64_t indent = RequireInteger(in, bound[1], "tojson's indent");
    if (indent < -1 || indent > 16) in.Fail("tojson's indent is " + std::to_string(indent) + "; expected 0 to 16");
    style.indent = static_cast<int>(indent);
    if (indent >= 0) style.item_separator = ",";
  }
  if (bound[2].IsList()) {
    const List& separators = bound[2].AsList();
    if (separators.size() != 2) in.Fail("tojson has " + std::to_string(separators.size()) + " separators; expected 2");
    style.item_separator = RequireString(in, separators[0], "tojson's separator of items");
    style.key_separator = RequireString(in, separators[1], "tojson's separator of keys");
  }
  return object.ToJson(style, in.meter());
}

Value FilterMap(Interpreter& in, const Value& object, const Arguments& arguments) {
  const Value* attribute = FindField(arguments.named, "attribute", in.meter());
  List mapped;
  if (attribute != nullptr) {
    const std::string& path = RequireString(in, *attribute, "the attribute's name");
    for (const Value& item : ElementsOrNone(in, object)) mapped.push_back(Attribute(in, item, path));
    return mapped;
  }
  if (arguments.positional.empty()) in.Fail("map needs a filter's name or an attribute");
  const std::string& name = RequireString(in, arguments.positional[0], "the filter's name");
  const Builtin filter = FindFilter(name);
  if (filter == nullptr) FailUnimplemented(in.position(), "filter '" + name + "' is not supported");
  const List rest(arguments.positional.begin() + 1, arguments.positional.end());
  for (const Value& item : ElementsOrNone(in, object)) mapped.push_back(in.Invoke(filter, item, {rest, arguments.named}));
  return mapped;
}

Value FilterInt(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"default"});
  const Value otherwise = bound[0].Is<Undefined>() ? Value(int64_t{0}) : bound[0];
  if (object.IsInteger()) return object.AsInteger();
  if (object.Is<double>())
    return std::fabs(object.As<double>()) < 9e18 ? Value(static_cast<int64_t>(object.As<double>())) : otherwise;
  if (!object.IsString()) return otherwise;
  std::string_view text = Strip(object.AsString());
  if (text.size() > 1 && text[0] == '+') text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? Value(value) : otherwise;
}

Value FirstOrLast(Interpreter& in, const Value& object, bool first) {
  const List items = in.Elements(object);
  if (items.empty()) return Undefined{first ? "the first of nothing" : "the last of nothing"};
  return first ? items.front() : items.back();
}

constexpr Entry kFilters[] = {
    {"capitalize", [](Interpreter& in, const Value& x, const Arguments&) { return Value(Capitalized(x.ToText(in.meter()))); }},
    {"count", [](Interpreter& in, const Value& x, const Arguments&) { return Length(in, x); }},
    {"d", FilterDefault},
    {"default", FilterDefault},
    {"first", [](Interpreter& in, const Value& x, const Arguments&) { return FirstOrLast(in, x, true); }},
    {"int", FilterInt},
    {"items",
     [](Interpreter& in, const Value& x, const Arguments&) {
       return x.Is<Undefined>() ? Value(List()) : Value(Pairs(in, RequireDict(in, x, "the object of 'items'")));
     }},
    {"join", FilterJoin},
    {"last", [](Interpreter& in, const Value& x, const Arguments&) { return FirstOrLast(in, x, false); }},
    {"length", [](Interpreter& in, const Value& x, const Arguments&) { return Length(in, x); }},
    {"list", [](Interpreter& in, const Value& x, const Arguments&) { return Value(in.Elements(x)); }},
    {"lower", [](Interpreter& in, const Value& x, const Arguments&) { return Value(ToLower(x.ToText(in.meter()))); }},
    {"map", FilterMap},
    {"reject", [](Interpreter& in, const Value& x, const Arguments& a) { return Select(in, x, a, false, false); }},
    {"rejectattr", [](Interpreter& in, const Value& x, const Arguments& a) { return Select(in, x, a, true, false); }},
    {"replace", [](Interpreter& in, const Value& x, const Arguments& a) { return Value(Replaced(in, x.ToText(in.meter()), a)); }},
    {"safe", [](Interpreter&, const Value& x, const Arguments&) { return x; }},
    {"select", [](Interpreter& in, const Value& x, const Arguments& a) { return Select(in, x, a, false, true); }},
    {"selectattr", [](Interpreter& in, const Value& x, const Arguments& a) { return Select(in, x, a, true, true); }},
    {"string", [](Interpreter& in, const Value& x, const Arguments&) { return Value(x.ToText(in.meter())); }},
    {"tojson", FilterToJson},
    {"trim", [](Interpreter& in, const Value& x, const Arguments& a) { return Value(Stripped(in, x.ToText(in.meter()), a, {})); }},
    {"upper", [](Interpreter& in, const Value& x, const Arguments&) { return Value(ToUpper(x.ToText(in.meter()))); }},
};

// Tests

Value TestEqual(Interpreter& in, const Value& object, const Arguments& arguments) {
  return Equal(object, Bind(in, arguments, {"other"})[0], in.meter());
}

bool IsIterable(const Value& x) { return x.IsString() || x.IsList() || x.IsDict() || x.Is<Undefined>(); }

Value TestRemainder(Interpreter& in, const Value& x, int64_t remainder) {
  return (RequireInteger(in, x, "the object of 'odd' or 'even'") & 1) == remainder;
}

constexpr Entry kTests[] = {
    {"boolean", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<bool>()); }},
    {"callable", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<Function>()); }},
    {"defined", [](Interpreter&, const Value& x, const Arguments&) { return Value(!x.Is<Undefined>()); }},
    {"eq", TestEqual},
    {"equalto", TestEqual},
    {"even", [](Interpreter& in, const Value& x, const Arguments&) { return TestRemainder(in, x, 0); }},
    {"false", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<bool>() && !x.As<bool>()); }},
    {"float", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<double>()); }},
    {"in", [](Interpreter& in, const Value& x,
              const Arguments& a) { return Value(in.HasElement(in.Elements(Bind(in, a, {"seq"}, 1)[0]), x)); }},
    {"integer", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<int64_t>()); }},
    {"iterable", [](Interpreter&, const Value& x, const Arguments&) { return Value(IsIterable(x)); }},
    {"mapping", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.IsDict()); }},
    {"ne", [](Interpreter& in, const Value& x, const Arguments& a) { return Value(!TestEqual(in, x, a).Truthy()); }},
    {"none", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<None>()); }},
    {"number", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.IsNumber()); }},
    {"odd", [](Interpreter& in, const Value& x, const Arguments&) { return TestRemainder(in, x, 1); }},
    {"sequence", [](Interpreter&, const Value& x, const Arguments&) { return Value(IsIterable(x)); }},
    {"string", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.IsString()); }},
    {"true", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<bool>() && x.As<bool>()); }},
    {"undefined", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<Undefined>()); }},
};

// Functions

Value RaiseException(Interpreter& in, const Value&, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"message"});
  throw Error{InvalidArgument("the chat template refuses these messages: " + bound[0].ToText(in.meter()))};
}

Value MakeNamespace(Interpreter& in, const Value&, const Arguments& arguments) {
  Dict fields;
  if (!arguments.positional.empty())
    fields = RequireDict(in, Bind(in, {arguments.positional, {}}, {"fields"})[0], "namespace's argument");
  for (const auto& [name, value] : arguments.named) SetField(&fields, name, value, in.meter());
  return in.MakeNamespace(std::move(fields));
}

Value Range(Interpreter& in, const Value&, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"start", "stop", "step"}, 1);
  const bool only_stop = bound[1].Is<Undefined>();
  const int64_t start = only_stop ? 0 : RequireInteger(in, bound[0], "range's start");
  const int64_t stop = RequireInteger(in, bound[only_stop ? 0 : 1], "range's stop");
  const int64_t step = bound[2].Is<Undefined>() ? 1 : RequireInteger(in, bound[2], "range's step");
  if (step == 0) in.Fail("range's step is 0; expected another integer");
  List numbers;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(numbers.size()) == kMaxRange) {
      in.Fail("a range has more than " + std::to_string(kMaxRange) + " numbers; expected fewer");
    }
    in.meter().Charge(sizeof(Value));
    numbers.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return numbers;
}

Value StrftimeNow(Interpreter& in, const Value&, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"format"}, 1);
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[256];
  return std::string(buffer, std::strftime(buffer, sizeof buffer, RequireString(in, bound[0], "the format").c_str(), &local));
}

constexpr Entry kFunctions[] = {
    {"namespace", MakeNamespace},
    {"raise_exception", RaiseException},
    {"range", Range},
    {"strftime_now", StrftimeNow},
};

// Methods: of strings and of dicts.

bool HasAffix(Interpreter& in, const Value& object, const Arguments& arguments, bool at_start) {
  const std::string_view text = RequireString(in, object, "the object of the method");
  const List bound = Bind(in, arguments, {"affix"}, 1);
  const List affixes = bound[0].IsList() ? in.Elements(bound[0]) : List{bound[0]};
  return std::any_of(affixes.begin(), affixes.end(), [&](const Value& affix) {
    const std::string& part = RequireString(in, affix, "what to look for");
    in.meter().Charge(std::min(part.size(), text.size()));
    return at_start ? text.starts_with(part) : text.ends_with(part);
  });
}

Value Split(Interpreter& in, const Value& object, const Arguments& arguments) {
  const std::string_view text = RequireString(in, object, "the object of split()");
  const List bound = Bind(in, arguments, {"sep", "maxsplit"});
  int64_t splits_left = bound[1].Is<Undefined>() ? -1 : RequireInteger(in, bound[1], "maxsplit");
  List parts;
  const auto add = [&](std::string_view part) {
    in.meter().Charge(kNewTextUnits + part.size());
    parts.emplace_back(part);
  };
  if (bound[0].Is<Undefined>() || bound[0].Is<None>()) {  // at runs of white space; no part is empty
    for (std::string_view rest = Strip(text, {}, {true, false}); !rest.empty(); --splits_left) {
      size_t length = 0;
      while (length < rest.size() && (splits_left == 0 || !IsSpaceCharacter(rest.substr(length)))) {
        length += DecodeUtf8(rest.substr(length)).length;
      }
      add(rest.substr(0, length));
      rest = Strip(rest.substr(length), {}, {true, false});
    }
    return parts;
  }
  const std::string& separator = RequireString(in, bound[0], "the separator");
  if (separator.empty()) in.Fail("the separator of split() is empty");
  size_t begin = 0;
  for (size_t found; splits_left != 0 && (found = FindText(text, separator, begin)) != std::string_view::npos; --splits_left) {
    add(text.substr(begin, found - begin));
    begin = found + separator.size();
  }
  add(text.substr(begin));
  return parts;
}

Value Get(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"key", "default"}, 1);
  const Dict& dict = RequireDict(in, object, "the object of get()");
  const Value* found = bound[0].IsString() ? FindField(dict, bound[0].AsString(), in.meter()) : nullptr;
  if (found != nullptr) return *found;
  return bound[1].Is<Undefined>() ? Value(None{}) : bound[1];
}

template <bool kLeft, bool kRight>
Value StripMethod(Interpreter& in, const Value& object, const Arguments& arguments) {
  return Stripped(in, RequireString(in, object, "the object of strip()"), arguments, {kLeft, kRight});
}

constexpr Entry kMethods[] = {
    {"capitalize", [](Interpreter& in, const Value& x,
                      const Arguments&) { return Value(Capitalized(RequireString(in, x, "the object of capitalize()"))); }},
    {"endswith", [](Interpreter& in, const Value& x, const Arguments& a) { return Value(HasAffix(in, x, a, false)); }},
    {"get", Get},
    {"items", [](Interpreter& in, const Value& x,
                 const Arguments&) { return Value(Pairs(in, RequireDict(in, x, "the object of items()"))); }},
    {"keys",
     [](Interpreter& in, const Value& x, const Arguments&) {
       RequireDict(in, x, "the object of keys()");
       return Value(in.Elements(x));
     }},
    {"lower", [](Interpreter& in, const Value& x,
                 const Arguments&) { return Value(ToLower(RequireString(in, x, "the object of lower()"))); }},
    {"lstrip", StripMethod<true, false>},
    {"replace", [](Interpreter& in, const Value& x,
                   const Arguments& a) { return Value(Replaced(in, RequireString(in, x, "the object of replace()"), a)); }},
    {"rstrip", StripMethod<false, true>},
    {"split", Split},
    {"startswith", [](Interpreter& in, const Value& x, const Arguments& a) { return Value(HasAffix(in, x, a, true)); }},
    {"strip", StripMethod<true, true>},
    {"upper", [](Interpreter& in, const Value& x,
                 const Arguments&) { return Value(ToUpper(RequireString(in, x, "the object of upper()"))); }},
    {"values",
     [](Interpreter& in, const Value& x, const Arguments&) {
       List values;
       in.meter().Charge(RequireDict(in, x, "the object of values()").size(), sizeof(Value));
       for (const auto& field : RequireDict(in, x, "the object of values()")) values.push_back(field.second);
       return Value(std::move(values));
     }},
};

}  // namespace

Builtin FindFilter(std::string_view name) { return Find(kFilters, name); }
Builtin FindTest(std::string_view name) { return Find(kTests, name); }
Builtin FindFunction(std::string_view name) { return Find(kFunctions, name); }
Builtin FindMethod(std::string_view name) { return Find(kMethods, name); }

}  // namespace coppice::jinja
