// Runs a parsed chat template: variables, output and the limits that a hostile template meets. Layer: tokenizer.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/ast.h"

namespace coppice::jinja {

// Variables, and those around them. Loops, macros and blocks open a scope; ifs do not.
struct Scope {
  Dict variables = {};
  std::shared_ptr<Scope> outer = nullptr;
  bool is_captured = false;  // a function may refer to it
};

// One rendering; not thread-safe.
class Interpreter {
 public:
  // `work`: units of Meter that the rendering may cost.
  Interpreter(Dict variables, size_t work)
      : scope_(std::make_shared<Scope>(Scope{.variables = std::move(variables)})), meter_(work) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;

  // Throws Error: INVALID_ARGUMENT for what the template or its data do wrong, RESOURCE_EXHAUSTED at a limit.
  TracedText Run(const Body& body);

  // For nodes and built-ins.
  Value Evaluate(const Expression& expression);
  void Execute(const Body& body);
  void Print(const TracedText& text);
  TracedText Capture(const Body& body);  // what `body` prints, run in a scope of its own
  // What the macro prints. It sees the variables of its definition and not its caller's, and its arguments.
  Value CallMacro(const Function& function, const Arguments& arguments);
  // {% break %} and {% continue %} end the bodies that they are in, up to the loop.
  enum class Control : uint8_t { kNone, kBreak, kContinue };
  void Leave(Control control) { control_ = control; }
  Control TakeControl() { return std::exchange(control_, Control::kNone); }
  bool is_leaving() const { return control_ != Control::kNone; }
  // `macro` with the scope that it is defined in.
  Function MakeFunction(const Macro& macro);
  // `function`, with what it is given and what it makes charged for.
  Value Invoke(Builtin function, const Value& object, const Arguments& arguments);
  Meter& meter() { return meter_; }
  [[noreturn]] void Fail(const std::string& message) const;
  Position position() const { return meter_.position; }

  Value Lookup(const std::string& name);
  void Assign(const TracedText& name, Value value) { SetField(&scope_->variables, name, std::move(value), meter_); }
  void PushScope() { scope_ = std::make_shared<Scope>(Scope{.outer = scope_}); }
  void PopScope() { scope_ = scope_->outer; }
  Namespace* MakeNamespace(Dict fields);

  // The elements of a list, keys of a dict or characters of a string; none of an undefined value. A generator is read to its end.
  List Elements(const Value& iterable);
  // `item` in `container`, as Python has it.
  bool Contains(const Value& container, const Value& item);
  // Below 0, 0 or above 0, as `left` is less, equal or greater: numbers, strings, and lists or tuples of them; kUnordered where one
  // is not a number. Fails on others; `op` is for the message.
  static constexpr int kUnordered = std::numeric_limits<int>::max();
  int Order(const std::string& op, const Value& left, const Value& right);
  // left + right, of numbers, strings, lists or tuples.
  Value Add(const Value& left, const Value& right);
  // object[key] and object.name, as Jinja looks them up; undefined where there is none. Fail if `object` is undefined.
  Value GetItem(const Value& object, const Value& key);
  Value GetAttribute(const Value& object, const std::string& name);
  // The same without what object[name] finds.
  Value GetOwnAttribute(const Value& object, const std::string& name);

 private:
  class Nesting;

  std::shared_ptr<Scope> scope_;  // the innermost
  // Cleared in the end: a function in a scope that it refers to is a cycle.
  std::vector<std::shared_ptr<Scope>> captured_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  TracedText output_;
  Meter meter_;
  int depth_ = 0;  // of nodes within nodes
  Control control_ = Control::kNone;
};

}  // namespace coppice::jinja
