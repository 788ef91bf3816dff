// Runs a parsed chat template: variables, output and the limits that a hostile template meets. Layer: tokenizer.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/ast.h"

namespace coppice::jinja {

// One rendering; not thread-safe.
class Interpreter {
 public:
  // `work`: units of Meter that the rendering may cost.
  Interpreter(Dict variables, size_t work) : meter_(work) { scopes_.push_back(std::move(variables)); }

  // Throws Error: INVALID_ARGUMENT for what the template or its data do wrong, RESOURCE_EXHAUSTED at a limit.
  std::string Run(const Body& body);

  // For nodes and built-ins.
  Value Evaluate(const Expression& expression);
  void Execute(const Body& body);
  void Print(std::string_view text);
  std::string Capture(const Body& body);  // what `body` prints, run in a scope of its own
  // What the macro prints. It sees the variables of its definition and not its caller's, and its arguments.
  Value CallMacro(const Function& function, const Arguments& arguments);
  // {% break %} and {% continue %} end the bodies that they are in, up to the loop.
  enum class Control : uint8_t { kNone, kBreak, kContinue };
  void Leave(Control control) { control_ = control; }
  Control TakeControl() { return std::exchange(control_, Control::kNone); }
  size_t num_scopes() const { return scopes_.size(); }
  // `function`, with what it is given and what it makes charged for.
  Value Invoke(Builtin function, const Value& object, const Arguments& arguments);
  Meter& meter() { return meter_; }
  [[noreturn]] void Fail(const std::string& message) const;
  Position position() const { return meter_.position; }

  Value Lookup(const std::string& name);
  void Assign(const std::string& name, Value value) { SetField(&scopes_.back(), name, std::move(value), meter_); }
  void PushScope() { scopes_.emplace_back(); }
  void PopScope() { scopes_.pop_back(); }
  Namespace* MakeNamespace(Dict fields);

  // The elements of a list, keys of a dict or characters of a string; none of an undefined value.
  List Elements(const Value& iterable);
  bool HasElement(const List& list, const Value& item);

 private:
  class Nesting;

  std::vector<Dict> scopes_;  // innermost last; loops open one, ifs do not
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  std::string output_;
  Meter meter_;
  int depth_ = 0;  // of nodes within nodes
  Control control_ = Control::kNone;
};

}  // namespace coppice::jinja
