#include "tokenizer/jinja/interpreter.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "tokenizer/jinja/text_format.h"
#include "tokenizer/jinja/unicode.h"

namespace coppice::jinja {
namespace {

// Expressions and blocks within each other while they run; the parser keeps templates whose macros do not call themselves below it.
constexpr int kMaxDepth = 1200;

// Costs, in units of Meter: rounded up from measurements on a busy 2.5 GHz core.
constexpr size_t kStepUnits = 60;      // running a node
constexpr size_t kCallUnits = 100;     // calling a built-in
constexpr size_t kTextUnits = 8;       // a byte that a built-in reads character by character, or writes
constexpr size_t kCaptureUnits = 300;  // a scope that is kept until the end

}  // namespace

Interpreter::~Interpreter() {
  for (const auto& scope : captured_) scope->variables.clear();
}

TracedText Interpreter::Run(const Body& body) {
  Execute(body);
  return std::move(output_);
}

// One node within others: charges for running it, and bounds the recursion.
class Interpreter::Nesting {
 public:
  Nesting(Interpreter* interpreter, Position position) : depth_(&interpreter->depth_) {
    interpreter->meter_.position = position;
    interpreter->meter_.Charge(kStepUnits);
    if (++*depth_ <= kMaxDepth) return;
    --*depth_;
    throw Error{ResourceExhausted("chat template, line " + std::to_string(position.line) + ": it nests deeper than " +
                                  std::to_string(kMaxDepth) + " expressions and blocks; mend the template")};
  }
  ~Nesting() { --*depth_; }
  Nesting(const Nesting&) = delete;

 private:
  int* depth_;
};

Value Interpreter::Evaluate(const Expression& expression) {
  const Nesting nesting(this, expression.position);
  return expression.Evaluate(*this);
}

void Interpreter::Execute(const Body& body) {
  for (const auto& statement : body) {
    const Nesting nesting(this, statement->position);
    statement->Execute(*this);
    if (control_ != Control::kNone) return;
  }
}

void Interpreter::Print(const TracedText& text) {
  meter_.Charge(text.cost());
  output_.Append(text);
}

TracedText Interpreter::Capture(const Body& body) {
  TracedText outer = std::exchange(output_, {});
  PushScope();
  Execute(body);
  PopScope();
  return std::exchange(output_, std::move(outer));
}

Function Interpreter::MakeFunction(const Macro& macro) {
  if (!scope_->is_captured) {
    meter_.Charge(kCaptureUnits);
    scope_->is_captured = true;
    captured_.push_back(scope_);
  }
  return {.macro = &macro, .scope = scope_};
}

Value Interpreter::CallMacro(const Function& function, const Arguments& arguments) {
  const Macro& macro = *function.macro;
  const auto fail = [&](const std::string& message) {
    Fail((macro.name.empty() ? "caller" : "macro '" + macro.name + "'") + message);
  };
  const auto is_parameter = [&](const std::string& wanted) {
    return std::any_of(macro.parameters.begin(), macro.parameters.end(), [&](const auto& x) { return x.first == wanted; });
  };
  const size_t num_bound = std::min(arguments.positional.size(), macro.parameters.size());
  if (arguments.positional.size() > num_bound && !macro.takes_varargs)
    fail(" takes not more than " + std::to_string(macro.parameters.size()) + " arguments");
  meter_.Charge(kCallUnits);
  meter_.Charge(arguments.named.size(), kCallUnits + macro.parameters.size() * kTextUnits);
  meter_.Charge(macro.parameters.size() + arguments.positional.size() + arguments.named.size(), sizeof(Dict::value_type));
  Dict kwargs;
  for (const auto& [argument, value] : arguments.named) {
    const std::string& given = argument.bytes();
    if (is_parameter(given) || (given == "caller" && macro.takes_caller)) continue;
    if (!macro.takes_kwargs || given == "caller") fail(" takes no argument '" + given + "'");
    SetField(&kwargs, argument, value, meter_);
  }
  const std::shared_ptr<Scope> caller = std::exchange(scope_, function.scope);
  PushScope();
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [parameter, otherwise] = macro.parameters[i];
    const Value* value = FindField(arguments.named, parameter, meter_);
    if (i < num_bound && value != nullptr) fail(" got argument '" + parameter + "' twice");
    if (i < num_bound) value = &arguments.positional[i];
    Assign(TracedText(parameter), value != nullptr       ? *value
                                  : otherwise != nullptr ? Evaluate(*otherwise)
                                                         : Value(Undefined{parameter}));
  }
  if (macro.takes_caller && !is_parameter("caller")) {
    const Value* value = FindField(arguments.named, "caller", meter_);
    Assign("caller", value != nullptr ? *value : Value(Undefined{"caller"}));
  }
  if (macro.takes_kwargs) Assign("kwargs", std::move(kwargs));
  if (macro.takes_varargs) {
    const auto rest = arguments.positional.begin() + static_cast<std::ptrdiff_t>(num_bound);
    Assign("varargs", Value(Sequence::kTuple, List(rest, arguments.positional.end())));
  }
  Value text = Capture(macro.body);
  scope_ = caller;
  return text;
}

Value Interpreter::Invoke(Builtin function, const Value& object, const Arguments& arguments) {
  const Nesting nesting(this, position());  // map calls filters, which may be map
  const auto charge_text = [this](const Value& value) {
    if (value.IsString()) meter_.Charge(value.AsText().cost(), kTextUnits);
  };
  meter_.Charge(kCallUnits);
  charge_text(object);
  for (const Value& argument : arguments.positional) charge_text(argument);
  for (const auto& [name, argument] : arguments.named) charge_text(argument);
  Value result = function(*this, object, arguments);
  charge_text(result);
  return result;
}

void Interpreter::Fail(const std::string& message) const { FailSyntax(position(), message); }

Value Interpreter::Lookup(const std::string& name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->outer.get()) {
    if (const Value* value = FindField(scope->variables, name, meter_)) return *value;
  }
  if (FindFunction(name) != nullptr) return Function();
  return Undefined{name};
}

Namespace* Interpreter::MakeNamespace(Dict fields) {
  meter_.Charge(fields.size() + 1, sizeof(Dict::value_type));
  namespaces_.push_back(std::make_unique<Namespace>(Namespace{std::move(fields)}));
  return namespaces_.back().get();
}

List Interpreter::Elements(const Value& iterable) {
  List elements;
  if (iterable.IsList()) {
    const std::span<const Value> unread = iterable.Unread();
    meter_.Charge(unread.size(), sizeof(Value));
    elements.assign(unread.begin(), unread.end());
    iterable.MarkRead(unread.size());
  } else if (iterable.IsDict()) {
    meter_.Charge(iterable.AsDict().size(), kNewTextUnits);
    for (const auto& [key, value] : iterable.AsDict()) {
      meter_.Charge(key.cost());
      elements.emplace_back(key);
    }
  } else if (iterable.IsString()) {
    const TracedText& text = iterable.AsText();
    meter_.Charge(text.size(), kNewTextUnits);
    for (std::string_view character : Characters(text.bytes())) elements.emplace_back(text.Part(character));
  } else if (!iterable.Is<Undefined>()) {
    Fail("a value of type " + std::string(iterable.TypeName()) + " cannot be iterated; expected a list, dict or string");
  }
  return elements;
}

namespace {

// `object` of an operation that an undefined value cannot take part in.
const Value& Defined(const Interpreter& in, const Value& object) {
  if (object.Is<Undefined>()) in.Fail("'" + object.As<Undefined>().name + "' is undefined");
  return object;
}

[[noreturn]] void FailOperands(const Interpreter& in, const std::string& op, const Value& left, const Value& right) {
  Defined(in, left), Defined(in, right);
  in.Fail("operator '" + op + "' cannot take " + std::string(left.TypeName()) + " and " + std::string(right.TypeName()));
}

Value Concatenate(Interpreter& in, const TracedText& left, const TracedText& right) {
  in.meter().Charge(left.cost() + right.cost());
  TracedText text = left;
  text.Append(right);
  return text;
}

Value IntegerArithmetic(const Interpreter& in, char op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case '+': overflow = __builtin_add_overflow(a, b, &result); break;
    case '-': overflow = __builtin_sub_overflow(a, b, &result); break;
    case '*': overflow = __builtin_mul_overflow(a, b, &result); break;
    default:  // 'd': floor division, '%': its remainder, with the divisor's sign
      if (b == 0) in.Fail("division by zero");
      if (b == -1) return op == '%' ? Value(int64_t{0}) : IntegerArithmetic(in, '-', 0, a);
      result = a / b;
      if (a % b != 0 && (a < 0) != (b < 0)) --result;
      if (op == '%') result = a - result * b;
  }
  if (overflow) in.Fail("the result of an integer operation does not fit 64 bits");
  return result;
}

Value FloatArithmetic(const Interpreter& in, char op, double a, double b) {
  if (op == '+') return a + b;
  if (op == '-') return a - b;
  if (op == '*') return a * b;
  if (b == 0) in.Fail("division by zero");
  if (op == '/') return a / b;
  double remainder = std::fmod(a, b);
  const double quotient = (a - remainder) / b;  // near an integer
  const bool below = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == '%') return below ? remainder + b : remainder != 0 ? remainder : std::copysign(0.0, b);
  return std::isfinite(quotient) ? std::round(below ? quotient - 1 : quotient) : quotient;
}

Value Power(const Interpreter& in, const Value& base, const Value& exponent) {
  if (base.IsInteger() && exponent.IsInteger() && exponent.AsInteger() >= 0) {
    int64_t result = 1, square = base.AsInteger();
    bool overflow = false, square_overflow = false;
    for (int64_t rest = exponent.AsInteger(); rest > 0; rest >>= 1) {
      if (rest & 1) overflow |= square_overflow || __builtin_mul_overflow(result, square, &result);
      square_overflow |= __builtin_mul_overflow(square, square, &square);
    }
    if (overflow) in.Fail("the result of operator '**' does not fit 64 bits");
    return result;
  }
  const double x = base.AsDouble(), y = exponent.AsDouble();
  if (x == 0 && y < 0) in.Fail("division by zero: 0 to a negative power");
  if (x < 0 && std::isfinite(x) && std::isfinite(y) && y != std::floor(y))
    in.Fail("a negative number to a power that is no integer is a complex number, which is not supported");
  const double result = std::pow(x, y);
  if (std::isinf(result) && std::isfinite(x) && std::isfinite(y)) in.Fail("the result of operator '**' is too large");
  return result;
}

// text * count, list * count
Value Repeat(Interpreter& in, const Value& value, int64_t count) {
  const size_t times = count > 0 ? static_cast<size_t>(count) : 0;
  if (value.IsString()) {
    in.meter().Charge(times, value.AsText().cost());
    return TracedText::Repeated(value.AsText(), times);
  }
  List list;
  const List& unit = value.AsList();
  in.meter().Charge(unit.size(), sizeof(Value));
  if (!unit.empty()) in.meter().Charge(times, unit.size() * sizeof(Value));
  for (size_t i = 0; i < times && !unit.empty(); ++i) list.insert(list.end(), unit.begin(), unit.end());
  return Value(value.IsTuple() ? Sequence::kTuple : Sequence::kList, std::move(list));
}

bool Compare(Interpreter& in, const std::string& op, const Value& left, const Value& right) {
  if (left.IsString()) in.meter().Charge(left.AsString().size());
  if (right.IsString()) in.meter().Charge(right.AsString().size());
  if (op == "==") return Equal(left, right, in.meter());
  if (op == "!=") return !Equal(left, right, in.meter());
  if (op == "in") return in.Contains(right, left);
  if (op == "not in") return !in.Contains(right, left);
  const int order = in.Order(op, left, right);
  if (order == Interpreter::kUnordered) return false;
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

// The indices that object[start:stop:step] takes from `size` elements, as Python counts them.
std::vector<size_t> SliceIndices(Interpreter& in, const Slice& slice, size_t size) {
  const auto evaluate = [&](const ExpressionPtr& part, int64_t otherwise) {
    if (part == nullptr) return otherwise;
    const Value value = in.Evaluate(*part);
    if (value.Is<None>()) return otherwise;
    if (!value.IsInteger()) in.Fail("a slice index is " + std::string(value.TypeName()) + "; expected an integer");
    return value.AsInteger();
  };
  const int64_t step = evaluate(slice.step, 1);
  if (step == 0) in.Fail("a slice step is 0; expected another integer");
  // The ends are clamped to [0, n], or [-1, n - 1] when going backwards.
  const auto n = static_cast<int64_t>(size), low = step > 0 ? int64_t{0} : int64_t{-1}, high = step > 0 ? n : n - 1;
  const auto clamp = [&](int64_t index) { return std::clamp(index < 0 ? index + n : index, low, high); };
  constexpr int64_t kAbsent = std::numeric_limits<int64_t>::min();
  const int64_t first = evaluate(slice.start, kAbsent), last = evaluate(slice.stop, kAbsent);
  const int64_t start = first == kAbsent ? (step > 0 ? low : high) : clamp(first);
  const int64_t stop = last == kAbsent ? (step > 0 ? high : low) : clamp(last);

  std::vector<size_t> indices;
  const int64_t distance = step > 0 ? stop - start : start - stop;
  in.meter().Charge(size, kTextUnits);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  for (uint64_t offset = 0; distance > 0 && offset < static_cast<uint64_t>(distance); offset += stride) {
    indices.push_back(static_cast<size_t>(step > 0 ? start + static_cast<int64_t>(offset) : start - static_cast<int64_t>(offset)));
    if (stride >= static_cast<uint64_t>(distance)) break;
  }
  return indices;
}

void AssignTarget(Interpreter& in, const Target& target, const Value& value) {
  if (!target.is_tuple && target.field.empty()) return in.Assign(TracedText(target.name), value);
  if (!target.is_tuple) {
    const Value object = in.Lookup(target.name);
    if (!object.Is<Namespace*>())
      in.Fail("cannot set '" + target.name + "." + target.field + "': only a namespace() has fields to set");
    return SetField(&object.As<Namespace*>()->fields, TracedText(target.field), value, in.meter());
  }
  const List parts = in.Elements(value);
  if (parts.size() != target.parts.size())
    in.Fail(std::to_string(parts.size()) + " values for " + std::to_string(target.parts.size()) + " variables");
  for (size_t i = 0; i < parts.size(); ++i) AssignTarget(in, target.parts[i], parts[i]);
}

Arguments EvaluateArguments(Interpreter& in, const CallArguments& arguments) {
  Arguments evaluated;
  for (const ExpressionPtr& argument : arguments.positional) evaluated.positional.push_back(in.Evaluate(*argument));
  if (arguments.more_positional != nullptr) {
    for (Value& argument : in.Elements(in.Evaluate(*arguments.more_positional)))
      evaluated.positional.push_back(std::move(argument));
  }
  for (const auto& [name, argument] : arguments.named) evaluated.named.emplace_back(TracedText(name), in.Evaluate(*argument));
  if (arguments.more_named != nullptr) {
    const Value more = in.Evaluate(*arguments.more_named);
    if (!more.IsDict()) in.Fail("the argument after ** is " + std::string(more.TypeName()) + "; expected a dict");
    for (const auto& [name, argument] : more.AsDict()) {
      in.meter().Charge(sizeof(Dict::value_type) + name.cost());
      if (FindField(evaluated.named, name.bytes(), in.meter()) != nullptr)
        in.Fail("argument '" + name.bytes() + "' is given twice");
      evaluated.named.emplace_back(name, argument);
    }
  }
  return evaluated;
}

}  // namespace

int Interpreter::Order(const std::string& op, const Value& left, const Value& right) {
  meter_.Charge(kTextUnits);
  if (left.IsInteger() && right.IsInteger())
    return left.AsInteger() < right.AsInteger() ? -1 : left.AsInteger() > right.AsInteger();
  if (left.IsNumber() && right.IsNumber()) {
    if (std::isnan(left.AsDouble()) || std::isnan(right.AsDouble())) return kUnordered;
    return left.AsDouble() < right.AsDouble() ? -1 : left.AsDouble() > right.AsDouble();
  }
  if (left.IsString() && right.IsString()) {
    meter_.Charge(std::min(left.AsString().size(), right.AsString().size()));
    return left.AsString().compare(right.AsString());  // UTF-8 keeps the order of code points
  }
  if (left.IsIndexed() && right.IsIndexed() && left.IsTuple() == right.IsTuple()) {
    const List &a = left.AsList(), &b = right.AsList();
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!Equal(a[i], b[i], meter_)) return Order(op, a[i], b[i]);
    }
    return a.size() < b.size() ? -1 : a.size() > b.size();
  }
  FailOperands(*this, op, left, right);
}

bool Interpreter::Contains(const Value& container, const Value& item) {
  if (container.IsString() && item.IsString()) {
    meter_.Charge(container.AsString().size() + item.AsString().size());
    return FindText(container.AsString(), item.AsString()) != std::string::npos;
  }
  if (container.IsDict()) return item.IsString() && FindField(container.AsDict(), item.AsString(), meter_) != nullptr;
  if (container.IsList()) {
    const auto unread = container.Unread();
    const auto found = std::find_if(unread.begin(), unread.end(), [&](const Value& x) { return Equal(x, item, meter_); });
    container.MarkRead(std::min(static_cast<size_t>(found - unread.begin()) + 1, unread.size()));
    return found != unread.end();
  }
  if (container.Is<Undefined>()) return false;
  FailOperands(*this, "in", item, container);
}

Value Interpreter::Add(const Value& left, const Value& right) {
  if (left.IsString() && right.IsString()) return Concatenate(*this, left.AsText(), right.AsText());
  if (left.IsIndexed() && right.IsIndexed() && left.IsTuple() == right.IsTuple()) {
    meter_.Charge(left.AsList().size() + right.AsList().size(), sizeof(Value));
    List list = left.AsList();
    list.insert(list.end(), right.AsList().begin(), right.AsList().end());
    return Value(left.IsTuple() ? Sequence::kTuple : Sequence::kList, std::move(list));
  }
  if (!left.IsNumber() || !right.IsNumber()) FailOperands(*this, "+", left, right);
  return left.IsInteger() && right.IsInteger() ? IntegerArithmetic(*this, '+', left.AsInteger(), right.AsInteger())
                                               : FloatArithmetic(*this, '+', left.AsDouble(), right.AsDouble());
}

Value Interpreter::GetItem(const Value& object, const Value& key) {
  Defined(*this, object);
  if (key.IsString()) {
    const Value* found = object.IsDict() ? FindField(object.AsDict(), key.AsString(), meter_) : nullptr;
    return found != nullptr ? *found : GetOwnAttribute(object, key.AsString());
  }
  if (key.IsInteger() && (object.IsIndexed() || object.IsString())) {
    if (object.IsString()) meter_.Charge(object.AsString().size(), kTextUnits);
    const std::vector<std::string_view> characters =
        object.IsString() ? Characters(object.AsString()) : std::vector<std::string_view>();
    const auto size = static_cast<int64_t>(object.IsString() ? characters.size() : object.AsList().size());
    const int64_t at = key.AsInteger() < 0 ? key.AsInteger() + size : key.AsInteger();
    if (at < 0 || at >= size) return Undefined{"index " + std::to_string(key.AsInteger())};
    return object.IsString() ? Value(object.AsText().Part(characters[static_cast<size_t>(at)]))
                             : object.AsList()[static_cast<size_t>(at)];
  }
  return Undefined{key.ToText(meter_).bytes()};
}

Value Interpreter::GetAttribute(const Value& object, const std::string& name) {
  Value own = GetOwnAttribute(object, name);
  return own.Is<Undefined>() && !object.Is<Namespace*>() ? GetItem(object, TracedText(name)) : own;
}

Value Interpreter::GetOwnAttribute(const Value& object, const std::string& name) {
  Defined(*this, object);
  if (object.Is<Namespace*>()) {
    const Value* found = FindField(object.As<Namespace*>()->fields, name, meter_);
    return found != nullptr ? *found : Undefined{name};
  }
  if (object.IsList() && object.sequence() == Sequence::kGroup && (name == "grouper" || name == "list"))
    return object.AsList()[name == "list"];
  return IsMethod(object, name) ? Value(Function()) : Value(Undefined{name});
}

Value NameReference::Evaluate(Interpreter& in) const { return in.Lookup(name); }

Value ListLiteral::Evaluate(Interpreter& in) const {
  in.meter().Charge(items.size(), sizeof(Value));
  List list;
  for (const ExpressionPtr& item : items) list.push_back(in.Evaluate(*item));
  return Value(is_tuple ? Sequence::kTuple : Sequence::kList, std::move(list));
}

Value DictLiteral::Evaluate(Interpreter& in) const {
  in.meter().Charge(fields.size(), sizeof(Dict::value_type));
  Dict dict;
  for (const auto& [key_expression, value_expression] : fields) {
    const Value key = in.Evaluate(*key_expression);
    if (!key.IsString()) in.Fail("a dict key is " + std::string(key.TypeName()) + "; expected a string");
    SetField(&dict, key.AsText(), in.Evaluate(*value_expression), in.meter());
  }
  return dict;
}

Value Subscript::Evaluate(Interpreter& in) const {
  const Value container = in.Evaluate(*object), key = in.Evaluate(*index);
  return is_attribute && key.IsString() ? in.GetAttribute(container, key.AsString()) : in.GetItem(container, key);
}

Value Slice::Evaluate(Interpreter& in) const {
  const Value container = in.Evaluate(*object);
  Defined(in, container);
  if (container.IsString()) {
    in.meter().Charge(container.AsText().cost(), kTextUnits);
    const auto characters = Characters(container.AsString());
    TracedText text;
    for (size_t i : SliceIndices(in, *this, characters.size())) text.Append(container.AsText(), characters[i]);
    return text;
  }
  if (!container.IsIndexed()) return Undefined{"a slice of " + std::string(container.TypeName())};
  const List& items = container.AsList();
  in.meter().Charge(items.size(), sizeof(Value));
  List list;
  for (size_t i : SliceIndices(in, *this, items.size())) list.push_back(items[i]);
  return Value(container.IsTuple() ? Sequence::kTuple : Sequence::kList, std::move(list));
}

Value Unary::Evaluate(Interpreter& in) const {
  const Value value = in.Evaluate(*operand);
  if (op == "not") return !value.Truthy();
  Defined(in, value);
  if (!value.IsNumber()) in.Fail("operator '" + op + "' cannot take " + std::string(value.TypeName()));
  if (value.Is<double>()) return op == "-" ? -value.As<double>() : value.As<double>();
  return op == "-" ? IntegerArithmetic(in, '-', 0, value.AsInteger()) : Value(value.AsInteger());
}

Value Arithmetic::Evaluate(Interpreter& in) const {
  const Value a = in.Evaluate(*left), b = in.Evaluate(*right);
  if (op == "~") return Concatenate(in, a.ToText(in.meter()), b.ToText(in.meter()));
  if (op == "+") return in.Add(a, b);
  if (op == "%" && a.IsString()) return FormatPercent(in, a.AsText(), b);
  if (op == "*" && a.IsInteger() && (b.IsString() || b.IsIndexed())) return Repeat(in, b, a.AsInteger());
  if (op == "*" && b.IsInteger() && (a.IsString() || a.IsIndexed())) return Repeat(in, a, b.AsInteger());
  if (!a.IsNumber() || !b.IsNumber()) FailOperands(in, op, a, b);
  if (op == "**") return Power(in, a, b);
  const char code = op == "//" ? 'd' : op[0];
  return a.IsInteger() && b.IsInteger() && code != '/' ? IntegerArithmetic(in, code, a.AsInteger(), b.AsInteger())
                                                       : FloatArithmetic(in, code, a.AsDouble(), b.AsDouble());
}

Value Comparison::Evaluate(Interpreter& in) const {
  Value left = in.Evaluate(*first);
  for (const auto& [op, expression] : rest) {
    Value right = in.Evaluate(*expression);
    if (!Compare(in, op, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Logic::Evaluate(Interpreter& in) const {
  Value value = in.Evaluate(*left);
  return value.Truthy() == is_and ? in.Evaluate(*right) : value;
}

Value Conditional::Evaluate(Interpreter& in) const {
  if (in.Evaluate(*condition).Truthy()) return in.Evaluate(*then);
  return otherwise == nullptr ? Value() : in.Evaluate(*otherwise);
}

Value Call::Evaluate(Interpreter& in) const { return Apply(in, object == nullptr ? Value() : in.Evaluate(*object)); }

Value Call::Apply(Interpreter& in, const Value& target) const {
  const Value result = in.Invoke(function, target, EvaluateArguments(in, arguments));
  return negated ? Value(!result.Truthy()) : result;
}

Value MacroCall::Evaluate(Interpreter& in) const {
  const Value function = in.Lookup(name);
  if (!function.Is<Function>() || function.As<Function>().macro == nullptr) in.Fail("'" + name + "' is no macro here");
  return in.CallMacro(function.As<Function>(), EvaluateArguments(in, arguments));
}

void TemplateText::Execute(Interpreter& in) const { in.Print(text); }

void Output::Execute(Interpreter& in) const { in.Print(in.Evaluate(*value).ToText(in.meter())); }

void If::Execute(Interpreter& in) const {
  for (const auto& [condition, body] : branches) {
    if (in.Evaluate(*condition).Truthy()) return in.Execute(body);
  }
  in.Execute(otherwise);
}

void For::Execute(Interpreter& in) const {
  List items = in.Elements(in.Evaluate(*iterable));
  in.PushScope();
  if (filter != nullptr) {
    List kept;
    for (const Value& item : items) {
      AssignTarget(in, target, item);
      if (in.Evaluate(*filter).Truthy()) kept.push_back(item);
    }
    items = std::move(kept);
  }
  const auto size = static_cast<int64_t>(items.size());
  for (int64_t i = 0; i < size; ++i) {
    in.meter().Charge(sizeof(Dict::value_type) * 11);  // for `loop`, and so that an empty body is not free
    in.PopScope();                                     // what an iteration sets ends with it
    in.PushScope();
    in.Assign("loop", Dict{{"index", i + 1},
                           {"index0", i},
                           {"revindex", size - i},
                           {"revindex0", size - i - 1},
                           {"first", i == 0},
                           {"last", i + 1 == size},
                           {"length", size},
                           {"depth", int64_t{1}},
                           {"depth0", int64_t{0}},
                           {"previtem", i > 0 ? items[i - 1] : Value()},
                           {"nextitem", i + 1 < size ? items[i + 1] : Value()}});
    AssignTarget(in, target, items[i]);
    in.Execute(body);
    if (in.TakeControl() == Interpreter::Control::kBreak) break;
  }
  in.PopScope();
  if (items.empty()) in.Execute(otherwise);
}

void LoopControl::Execute(Interpreter& in) const {
  in.Leave(is_break ? Interpreter::Control::kBreak : Interpreter::Control::kContinue);
}

void Block::Execute(Interpreter& in) const {
  in.PushScope();
  in.Execute(body);
  in.PopScope();
}

void Macro::Execute(Interpreter& in) const { in.Assign(TracedText(name), in.MakeFunction(*this)); }

void CallBlock::Execute(Interpreter& in) const {
  const Value function = in.Lookup(call->name);
  if (!function.Is<Function>() || function.As<Function>().macro == nullptr) in.Fail("'" + call->name + "' is no macro here");
  Arguments given = EvaluateArguments(in, call->arguments);
  if (FindField(given.named, "caller", in.meter()) != nullptr) in.Fail("argument 'caller' is given twice");
  given.named.emplace_back("caller", in.MakeFunction(caller));
  in.Print(in.CallMacro(function.As<Function>(), given).AsText());
}

void With::Execute(Interpreter& in) const {
  std::vector<Value> values;  // none sees another's variable
  for (const auto& assignment : assignments) values.push_back(in.Evaluate(*assignment.second));
  in.PushScope();
  for (size_t i = 0; i < values.size(); ++i) AssignTarget(in, assignments[i].first, values[i]);
  in.Execute(body);
  in.PopScope();
}

Value FilteredBody::Evaluate(Interpreter& in) const {
  Value text = in.Capture(body);
  if (in.is_leaving()) return "";  // a break or continue discards what was printed
  for (const auto& filter : filters) text = filter->Apply(in, text);
  return text;
}

void FilterBlock::Execute(Interpreter& in) const {
  const Value text = body.Evaluate(in);
  if (!text.IsString()) in.Fail("the filter of a block gave " + std::string(text.TypeName()) + "; expected a string");
  in.Print(text.AsText());
}

void Set::Execute(Interpreter& in) const { AssignTarget(in, target, value == nullptr ? body.Evaluate(in) : in.Evaluate(*value)); }

}  // namespace coppice::jinja
