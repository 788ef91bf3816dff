// Runs a parsed chat template: variables, output and the limits that a hostile template meets. Layer: tokenizer.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/ast.h"

namespace coppice::jinja {

// One rendering; not thread-safe.
class Interpreter {
 public:
  explicit Interpreter(Dict variables) { scopes_.push_back(std::move(variables)); }

  // Throws Error: INVALID_ARGUMENT for what the template or its data do wrong, RESOURCE_EXHAUSTED at a limit.
  std::string Run(const Body& body);

  // For nodes and built-ins.
  Value Evaluate(const Expression& expression);
  void Execute(const Body& body);
  void Print(std::string_view text);
  std::string Capture(const Body& body);  // what `body` prints, run in a scope of its own
  // Counts work and memory in proportion to `bytes`, before they are spent.
  void Charge(size_t bytes);
  [[noreturn]] void Fail(const std::string& message) const;
  Position position() const { return position_; }

  Value Lookup(const std::string& name) const;
  void Assign(const std::string& name, Value value) { SetField(&scopes_.back(), name, std::move(value)); }
  void PushScope() { scopes_.emplace_back(); }
  void PopScope() { scopes_.pop_back(); }
  Namespace* MakeNamespace(Dict fields);

  // The elements of a list, keys of a dict or characters of a string; none of an undefined value.
  List Elements(const Value& iterable);

 private:
  void Step();

  std::vector<Dict> scopes_;  // innermost last; loops open one, ifs do not
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  std::string output_;
  Position position_;
  int64_t steps_left_ = 2'000'000;         // real templates need some ten a message
  size_t bytes_left_ = size_t{128} << 20;  // of text and lists made in one rendering
};

}  // namespace coppice::jinja
