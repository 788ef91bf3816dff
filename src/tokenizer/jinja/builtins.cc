#include "tokenizer/jinja/builtins.h"

#include <cmath>
#include <ctime>

#include "tokenizer/jinja/builtin_support.h"
#include "tokenizer/jinja/unicode.h"

namespace coppice::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as in Jinja's sandbox

// Tests

Value TestEqual(Interpreter& in, const Value& object, const Arguments& arguments) {
  return Equal(object, Bind(in, arguments, {"other"})[0], in.meter());
}

Value TestUnequal(Interpreter& in, const Value& object, const Arguments& arguments) {
  return !TestEqual(in, object, arguments).Truthy();
}

// Whether the order of the object and the argument is one of those named.
template <bool kLess, bool kEqual, bool kGreater>
Value TestOrder(Interpreter& in, const Value& object, const Arguments& arguments) {
  const int order = in.Order("<", object, Bind(in, arguments, {"other"})[0]);
  constexpr bool kHolds[] = {kLess, kEqual, kGreater};
  return order != Interpreter::kUnordered && kHolds[1 + (order > 0) - (order < 0)];
}

// Python's `is`, by value where equal values are one object: not of lists and dicts.
Value TestSameAs(Interpreter& in, const Value& object, const Arguments& arguments) {
  const Value other = Bind(in, arguments, {"other"})[0];
  if (object.IsList() && other.IsList()) return &object.AsList() == &other.AsList();
  if (object.IsDict() && other.IsDict()) return &object.AsDict() == &other.AsDict();
  return object.TypeName() == other.TypeName() && Equal(object, other, in.meter());
}

// Of a division by 2.
Value TestRemainder(Interpreter& in, const Value& x, int remainder) {
  if (!x.Is<double>()) return (RequireInteger(in, x, "the object of 'odd' or 'even'") & 1) == remainder;
  const double found = std::fmod(x.As<double>(), 2);
  return (found < 0 ? found + 2 : found) == remainder;
}

Value TestDivisible(Interpreter& in, const Value& object, const Arguments& arguments) {
  const Value divisor = Bind(in, arguments, {"num"}, 1)[0];
  const double number = RequireNumber(in, object, "the object of 'divisibleby'");
  if (RequireNumber(in, divisor, "the divisor") == 0) in.Fail("division by zero");
  if (!object.IsInteger() || !divisor.IsInteger()) return std::fmod(number, divisor.AsDouble()) == 0;
  return divisor.AsInteger() == -1 || object.AsInteger() % divisor.AsInteger() == 0;  // the least integer has no quotient by -1
}

// 'x' is filter, 'x' is test
template <Builtin (*kFind)(std::string_view)>
Value TestIsKnown(Interpreter&, const Value& object, const Arguments&) {
  return object.IsString() && kFind(object.AsString()) != nullptr;
}

// Some letter has the case, and none has another.
template <bool (*kIs)(std::string_view), bool (*kIsOther)(std::string_view)>
Value TestCase(Interpreter& in, const Value& object, const Arguments&) {
  return IsAllOfCase(object.ToText(in.meter()).bytes(), kIs, kIsOther);
}

bool IsIterable(const Value& x) { return x.IsString() || x.IsList() || x.IsDict() || x.Is<Undefined>(); }
bool IsSequence(const Value& x) { return IsIterable(x) && (!x.IsList() || x.IsIndexed()); }

constexpr Entry kTests[] = {
    {"!=", TestUnequal},
    {"<", TestOrder<true, false, false>},
    {"<=", TestOrder<true, true, false>},
    {"==", TestEqual},
    {">", TestOrder<false, false, true>},
    {">=", TestOrder<false, true, true>},
    {"boolean", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<bool>()); }},
    {"callable", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<Function>() || x.Is<Undefined>()); }},
    {"defined", [](Interpreter&, const Value& x, const Arguments&) { return Value(!x.Is<Undefined>()); }},
    {"divisibleby", TestDivisible},
    {"eq", TestEqual},
    {"equalto", TestEqual},
    {"even", [](Interpreter& in, const Value& x, const Arguments&) { return TestRemainder(in, x, 0); }},
    {"false", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<bool>() && !x.As<bool>()); }},
    {"filter", TestIsKnown<FindFilter>},
    {"float", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<double>()); }},
    {"ge", TestOrder<false, true, true>},
    {"greaterthan", TestOrder<false, false, true>},
    {"gt", TestOrder<false, false, true>},
    {"in", [](Interpreter& in, const Value& x, const Arguments& a) { return Value(in.Contains(Bind(in, a, {"seq"})[0], x)); }},
    {"integer", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<int64_t>()); }},
    {"iterable", [](Interpreter&, const Value& x, const Arguments&) { return Value(IsIterable(x)); }},
    {"le", TestOrder<true, true, false>},
    {"lessthan", TestOrder<true, false, false>},
    {"lower", TestCase<IsLowerCharacter, IsUpperCharacter>},
    {"lt", TestOrder<true, false, false>},
    {"mapping", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.IsDict()); }},
    {"ne", TestUnequal},
    {"none", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<None>()); }},
    {"number", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.IsNumber()); }},
    {"odd", [](Interpreter& in, const Value& x, const Arguments&) { return TestRemainder(in, x, 1); }},
    {"sameas", TestSameAs},
    {"sequence", [](Interpreter&, const Value& x, const Arguments&) { return Value(IsSequence(x)); }},
    {"string", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.IsString()); }},
    {"test", TestIsKnown<FindTest>},
    {"true", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<bool>() && x.As<bool>()); }},
    {"undefined", [](Interpreter&, const Value& x, const Arguments&) { return Value(x.Is<Undefined>()); }},
    {"upper", TestCase<IsUpperCharacter, IsLowerCharacter>},
};

// Functions

Value RaiseException(Interpreter& in, const Value&, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"message"});
  throw Error{InvalidArgument("the chat template refuses these messages: " + bound[0].ToText(in.meter()).bytes())};
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
  const TracedText& format = RequireText(in, bound[0], "the format");
  const size_t length = std::strftime(buffer, sizeof buffer, format.bytes().c_str(), &local);
  TracedText text;
  text.AppendFor({buffer, length}, format, format.bytes());
  return text;
}

// dict(fields, name=value...): fields are a dict or a list of pairs.
Value MakeDict(Interpreter& in, const Value&, const Arguments& arguments) {
  const Value fields = Bind(in, {arguments.positional, {}}, {"fields"})[0];
  Dict dict;
  if (fields.IsDict()) {
    in.meter().Charge(fields.AsDict().size(), kPairUnits);
    dict = fields.AsDict();
  } else {
    for (const Value& pair : in.Elements(fields)) {
      const List parts = in.Elements(pair);
      if (parts.size() != 2) in.Fail("dict() takes pairs; found " + std::to_string(parts.size()) + " values");
      in.meter().Charge(kPairUnits);
      SetField(&dict, RequireText(in, parts[0], "a key of dict()"), parts[1], in.meter());
    }
  }
  for (const auto& [name, value] : arguments.named) SetField(&dict, name, value, in.meter());
  return dict;
}

constexpr Entry kFunctions[] = {
    {"dict", MakeDict}, {"namespace", MakeNamespace},  {"raise_exception", RaiseException},
    {"range", Range},   {"strftime_now", StrftimeNow},
};

}  // namespace

Builtin FindTest(std::string_view name) { return Find(kTests, name); }
Builtin FindFunction(std::string_view name) { return Find(kFunctions, name); }

}  // namespace coppice::jinja
