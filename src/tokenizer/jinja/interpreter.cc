#include "tokenizer/jinja/interpreter.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "tokenizer/jinja/unicode.h"

namespace coppice::jinja {
namespace {

// Expressions and blocks within each other while they run; the parser keeps templates whose macros do not call themselves below it.
constexpr int kMaxDepth = 1200;

// What things cost, in units of Meter: rounded up from measurements on a busy 2.5 GHz core.
constexpr size_t kStepUnits = 60;      // running a node
constexpr size_t kCallUnits = 100;     // calling a built-in
constexpr size_t kTextUnits = 8;       // a byte that a built-in reads character by character, or writes
constexpr size_t kNewTextUnits = 100;  // a string of its own

}  // namespace

std::string Interpreter::Run(const Body& body) {
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

void Interpreter::Print(std::string_view text) {
  meter_.Charge(text.size());
  output_ += text;
}

std::string Interpreter::Capture(const Body& body) {
  std::string outer = std::exchange(output_, {});
  PushScope();
  Execute(body);
  PopScope();
  return std::exchange(output_, std::move(outer));
}

Value Interpreter::CallMacro(const Function& function, const Arguments& arguments) {
  const Macro& macro = *function.macro;
  if (arguments.positional.size() > macro.parameters.size())
    Fail("macro '" + macro.name + "' takes not more than " + std::to_string(macro.parameters.size()) + " arguments");
  for (const auto& [name, value] : arguments.named) {
    const auto is_it = [&wanted = name](const auto& parameter) {
      return parameter.first == wanted;
    };  // clang 14 captures no binding
    if (std::none_of(macro.parameters.begin(), macro.parameters.end(), is_it))
      Fail("macro '" + macro.name + "' takes no argument '" + name + "'");
  }
  meter_.Charge(kCallUnits);
  meter_.Charge(macro.parameters.size() + scopes_.size(), sizeof(Dict::value_type));
  // The caller's scopes step aside.
  const auto first = scopes_.begin() + static_cast<std::ptrdiff_t>(std::min(function.scopes, scopes_.size()));
  std::vector<Dict> aside(std::make_move_iterator(first), std::make_move_iterator(scopes_.end()));
  scopes_.erase(first, scopes_.end());
  PushScope();
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, otherwise] = macro.parameters[i];
    const Value* value = i < arguments.positional.size() ? &arguments.positional[i] : FindField(arguments.named, name, meter_);
    if (i < arguments.positional.size() && FindField(arguments.named, name, meter_) != nullptr)
      Fail("macro '" + macro.name + "' got argument '" + name + "' twice");
    Assign(name, value != nullptr ? *value : otherwise != nullptr ? Evaluate(*otherwise) : Value(Undefined{name}));
  }
  const Value text = Capture(macro.body);
  PopScope();
  scopes_.insert(scopes_.end(), std::make_move_iterator(aside.begin()), std::make_move_iterator(aside.end()));
  return text;
}

Value Interpreter::Invoke(Builtin function, const Value& object, const Arguments& arguments) {
  const auto charge_text = [this](const Value& value) {
    if (value.IsString()) meter_.Charge(value.AsString().size(), kTextUnits);
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
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const Value* value = FindField(*scope, name, meter_)) return *value;
  }
  if (FindFunction(name) != nullptr) return Function();
  return Undefined{name};
}

bool Interpreter::HasElement(const List& list, const Value& item) {
  return std::any_of(list.begin(), list.end(), [&](const Value& element) { return Equal(element, item, meter_); });
}

Namespace* Interpreter::MakeNamespace(Dict fields) {
  meter_.Charge(fields.size() + 1, sizeof(Dict::value_type));
  namespaces_.push_back(std::make_unique<Namespace>(Namespace{std::move(fields)}));
  return namespaces_.back().get();
}

List Interpreter::Elements(const Value& iterable) {
  List elements;
  if (iterable.IsList()) {
    meter_.Charge(iterable.AsList().size(), sizeof(Value));
    elements = iterable.AsList();
  } else if (iterable.IsDict()) {
    meter_.Charge(iterable.AsDict().size(), kNewTextUnits);
    for (const auto& [key, value] : iterable.AsDict()) {
      meter_.Charge(key.size());
      elements.emplace_back(key);
    }
  } else if (iterable.IsString()) {
    meter_.Charge(iterable.AsString().size(), kNewTextUnits);
    for (std::string_view character : Characters(iterable.AsString())) elements.emplace_back(character);
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

Value Concatenate(Interpreter& in, const std::string& left, const std::string& right) {
  in.meter().Charge(left.size() + right.size());
  return left + right;
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
  const double quotient = std::floor(a / b);
  return op == '%' ? a - quotient * b : quotient;
}

// -1, 0, 1; both numbers or both strings.
int Order(const Interpreter& in, const std::string& op, const Value& left, const Value& right) {
  if (left.IsInteger() && right.IsInteger())
    return left.AsInteger() < right.AsInteger() ? -1 : left.AsInteger() > right.AsInteger();
  if (left.IsNumber() && right.IsNumber()) return left.AsDouble() < right.AsDouble() ? -1 : left.AsDouble() > right.AsDouble();
  if (left.IsString() && right.IsString())
    return left.AsString().compare(right.AsString());  // UTF-8 keeps the order of code points
  FailOperands(in, op, left, right);
}

bool Contains(Interpreter& in, const Value& container, const Value& item) {
  if (container.IsString() && item.IsString()) return FindText(container.AsString(), item.AsString()) != std::string::npos;
  if (container.IsDict()) return item.IsString() && FindField(container.AsDict(), item.AsString(), in.meter()) != nullptr;
  if (container.IsList()) return in.HasElement(container.AsList(), item);
  if (container.Is<Undefined>()) return false;
  FailOperands(in, "in", item, container);
}

bool Compare(Interpreter& in, const std::string& op, const Value& left, const Value& right) {
  if (left.IsString()) in.meter().Charge(left.AsString().size());
  if (right.IsString()) in.meter().Charge(right.AsString().size());
  if (op == "==") return Equal(left, right, in.meter());
  if (op == "!=") return !Equal(left, right, in.meter());
  if (op == "in") return Contains(in, right, left);
  if (op == "not in") return !Contains(in, right, left);
  const int order = Order(in, op, left, right);
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

// `targets` = `value`, taken apart where there are several.
void AssignTargets(Interpreter& in, const std::vector<std::string>& targets, const Value& value) {
  if (targets.size() == 1) return in.Assign(targets[0], value);
  const List parts = in.Elements(value);
  if (parts.size() != targets.size()) {
    in.Fail(std::to_string(parts.size()) + " values for " + std::to_string(targets.size()) + " variables");
  }
  for (size_t i = 0; i < parts.size(); ++i) in.Assign(targets[i], parts[i]);
}

Arguments EvaluateArguments(Interpreter& in, const CallArguments& arguments) {
  Arguments evaluated;
  for (const ExpressionPtr& argument : arguments.positional) evaluated.positional.push_back(in.Evaluate(*argument));
  for (const auto& [name, argument] : arguments.named) evaluated.named.emplace_back(name, in.Evaluate(*argument));
  return evaluated;
}

}  // namespace

Value NameReference::Evaluate(Interpreter& in) const { return in.Lookup(name); }

Value ListLiteral::Evaluate(Interpreter& in) const {
  in.meter().Charge(items.size(), sizeof(Value));
  List list;
  for (const ExpressionPtr& item : items) list.push_back(in.Evaluate(*item));
  return list;
}

Value DictLiteral::Evaluate(Interpreter& in) const {
  in.meter().Charge(fields.size(), sizeof(Dict::value_type));
  Dict dict;
  for (const auto& [key_expression, value_expression] : fields) {
    const Value key = in.Evaluate(*key_expression);
    if (!key.IsString()) in.Fail("a dict key is " + std::string(key.TypeName()) + "; expected a string");
    SetField(&dict, key.AsString(), in.Evaluate(*value_expression), in.meter());
  }
  return dict;
}

Value Subscript::Evaluate(Interpreter& in) const {
  const Value container = in.Evaluate(*object), key = in.Evaluate(*index);
  Defined(in, container);
  if (key.IsString()) {
    const Dict* fields = container.IsDict() ? &container.AsDict() : nullptr;
    if (container.Is<Namespace*>()) fields = &container.As<Namespace*>()->fields;
    const Value* found = fields == nullptr ? nullptr : FindField(*fields, key.AsString(), in.meter());
    return found == nullptr ? Undefined{key.AsString()} : *found;
  }
  if (key.IsInteger() && (container.IsList() || container.IsString())) {
    if (container.IsString()) in.meter().Charge(container.AsString().size(), kTextUnits);
    const std::vector<std::string_view> characters =
        container.IsString() ? Characters(container.AsString()) : std::vector<std::string_view>();
    const auto size = static_cast<int64_t>(container.IsString() ? characters.size() : container.AsList().size());
    const int64_t at = key.AsInteger() < 0 ? key.AsInteger() + size : key.AsInteger();
    if (at < 0 || at >= size) return Undefined{"index " + std::to_string(key.AsInteger())};
    return container.IsString() ? Value(characters[static_cast<size_t>(at)]) : container.AsList()[static_cast<size_t>(at)];
  }
  return Undefined{key.ToText(in.meter())};
}

Value Slice::Evaluate(Interpreter& in) const {
  const Value container = in.Evaluate(*object);
  Defined(in, container);
  if (container.IsString()) {
    in.meter().Charge(container.AsString().size(), kTextUnits);
    const auto characters = Characters(container.AsString());
    std::string text;
    for (size_t i : SliceIndices(in, *this, characters.size())) text += characters[i];
    return text;
  }
  if (!container.IsList()) in.Fail("a value of type " + std::string(container.TypeName()) + " cannot be sliced");
  const List& items = container.AsList();
  in.meter().Charge(items.size(), sizeof(Value));
  List list;
  for (size_t i : SliceIndices(in, *this, items.size())) list.push_back(items[i]);
  return list;
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
  if (op == "+" && a.IsString() && b.IsString()) return Concatenate(in, a.AsString(), b.AsString());
  if (op == "+" && a.IsList() && b.IsList()) {
    in.meter().Charge(a.AsList().size() + b.AsList().size(), sizeof(Value));
    List list = a.AsList();
    list.insert(list.end(), b.AsList().begin(), b.AsList().end());
    return list;
  }
  if (!a.IsNumber() || !b.IsNumber()) FailOperands(in, op, a, b);
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

Value Call::Evaluate(Interpreter& in) const {
  const Value target = object == nullptr ? Value() : in.Evaluate(*object);
  const Value result = in.Invoke(function, target, EvaluateArguments(in, arguments));
  return negated ? Value(!result.Truthy()) : result;
}

Value MacroCall::Evaluate(Interpreter& in) const {
  const Value function = in.Lookup(name);
  if (!function.Is<Function>() || function.As<Function>().macro == nullptr) in.Fail("'" + name + "' is no macro here");
  return in.CallMacro(function.As<Function>(), EvaluateArguments(in, arguments));
}

void Text::Execute(Interpreter& in) const { in.Print(text); }

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
      AssignTargets(in, targets, item);
      if (in.Evaluate(*filter).Truthy()) kept.push_back(item);
    }
    items = std::move(kept);
  }
  const auto size = static_cast<int64_t>(items.size());
  for (int64_t i = 0; i < size; ++i) {
    in.meter().Charge(sizeof(Dict::value_type) * 9);  // for `loop`, and so that an empty body is not free
    in.PopScope();                                    // what an iteration sets ends with it
    in.PushScope();
    in.Assign("loop", Dict{{"index", i + 1},
                           {"index0", i},
                           {"revindex", size - i},
                           {"revindex0", size - i - 1},
                           {"first", i == 0},
                           {"last", i + 1 == size},
                           {"length", size},
                           {"previtem", i > 0 ? items[i - 1] : Value()},
                           {"nextitem", i + 1 < size ? items[i + 1] : Value()}});
    AssignTargets(in, targets, items[i]);
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

void Macro::Execute(Interpreter& in) const { in.Assign(name, Function{.macro = this, .scopes = in.num_scopes()}); }

void Set::Execute(Interpreter& in) const {
  const Value result = value == nullptr ? Value(in.Capture(body)) : in.Evaluate(*value);
  if (field.empty()) return AssignTargets(in, targets, result);
  const Value object = in.Lookup(targets[0]);
  if (!object.Is<Namespace*>()) in.Fail("cannot set '" + targets[0] + "." + field + "': only a namespace() has fields to set");
  SetField(&object.As<Namespace*>()->fields, field, result, in.meter());
}

}  // namespace coppice::jinja
