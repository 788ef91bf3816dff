// The syntax tree of a chat template. Nodes are made by the parser and run by the interpreter; they are immutable in between.
// Layer: tokenizer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/lexer.h"
#include "tokenizer/jinja/value.h"

namespace coppice::jinja {

class Interpreter;

struct Expression {
  Position position;
  virtual ~Expression() = default;
  virtual Value Evaluate(Interpreter& interpreter) const = 0;
};
using ExpressionPtr = std::unique_ptr<Expression>;

struct Statement {
  Position position;
  virtual ~Statement() = default;
  virtual void Execute(Interpreter& interpreter) const = 0;
};
using Body = std::vector<std::unique_ptr<Statement>>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional, more_named;  // f(*a, **b); null where absent
};

// The target of an assignment: a variable, a field of a namespace, or several targets that the value is taken apart for.
struct Target {
  std::string name = {};
  std::string field = {};  // of the namespace `name`; empty: the variable itself
  bool is_tuple = false;
  std::vector<Target> parts = {};
};

// Expressions

struct Literal final : Expression {
  Value value;
  Value Evaluate(Interpreter&) const override { return value; }
};

struct NameReference final : Expression {
  std::string name;
  Value Evaluate(Interpreter& interpreter) const override;
};

struct ListLiteral final : Expression {
  bool is_tuple = false;
  std::vector<ExpressionPtr> items;
  Value Evaluate(Interpreter& interpreter) const override;
};

struct DictLiteral final : Expression {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> fields;
  Value Evaluate(Interpreter& interpreter) const override;
};

struct Subscript final : Expression {  // object[index]; object.name has a literal index
  bool is_attribute = false;
  ExpressionPtr object, index;
  Value Evaluate(Interpreter& interpreter) const override;
};

struct Slice final : Expression {  // object[start:stop:step], each may be null
  ExpressionPtr object, start, stop, step;
  Value Evaluate(Interpreter& interpreter) const override;
};

struct Unary final : Expression {
  std::string op;  // "not", "-", "+"
  ExpressionPtr operand;
  Value Evaluate(Interpreter& interpreter) const override;
};

struct Arithmetic final : Expression {
  std::string op;  // + - * / // % ** ~
  ExpressionPtr left, right;
  Value Evaluate(Interpreter& interpreter) const override;
};

struct Comparison final : Expression {  // a < b <= c: all must hold
  ExpressionPtr first;
  std::vector<std::pair<std::string, ExpressionPtr>> rest;  // == != < <= > >= in, not in
  Value Evaluate(Interpreter& interpreter) const override;
};

struct Logic final : Expression {  // the value that decided, as in Python
  bool is_and = false;
  ExpressionPtr left, right;
  Value Evaluate(Interpreter& interpreter) const override;
};

struct Conditional final : Expression {  // then if condition else otherwise (may be null)
  ExpressionPtr condition, then, otherwise;
  Value Evaluate(Interpreter& interpreter) const override;
};

struct Call final : Expression {  // function(...), object.method(...), object | filter(...), object is test(...)
  Builtin function = nullptr;
  bool negated = false;  // is not
  ExpressionPtr object;  // null for functions and for filters of a block
  CallArguments arguments;
  Value Evaluate(Interpreter& interpreter) const override;
  Value Apply(Interpreter& interpreter, const Value& target) const;
};

struct MacroCall final : Expression {  // name(...) of what is no built-in
  std::string name;
  CallArguments arguments;
  Value Evaluate(Interpreter& interpreter) const override;
};

// Statements

struct TemplateText final : Statement {  // outside of tags
  TracedText text;
  void Execute(Interpreter& interpreter) const override;
};

struct Output final : Statement {
  ExpressionPtr value;
  void Execute(Interpreter& interpreter) const override;
};

struct If final : Statement {
  std::vector<std::pair<ExpressionPtr, Body>> branches;  // if and elif
  Body otherwise;
  void Execute(Interpreter& interpreter) const override;
};

struct For final : Statement {
  Target target;
  ExpressionPtr iterable, filter;  // filter may be null
  Body body, otherwise;
  void Execute(Interpreter& interpreter) const override;
};

struct LoopControl final : Statement {  // {% break %}, {% continue %}
  bool is_break = false;
  void Execute(Interpreter& interpreter) const override;
};

struct Block final : Statement {  // {% generation %}: marks what the model wrote, prints its body
  Body body;
  void Execute(Interpreter& interpreter) const override;
};

struct Macro final : Statement {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with their defaults, or null
  // The body reads these variables and no parameter has the name: it takes arguments beyond the parameters.
  bool takes_caller = false, takes_varargs = false, takes_kwargs = false;
  Body body;
  void Execute(Interpreter& interpreter) const override;
};

struct CallBlock final : Statement {  // {% call(parameters) macro(...) %}
  Macro caller;                       // the body
  std::unique_ptr<MacroCall> call;
  void Execute(Interpreter& interpreter) const override;
};

struct With final : Statement {
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  Body body;
  void Execute(Interpreter& interpreter) const override;
};

// The output of a body, after the filters.
struct FilteredBody {
  Body body;
  std::vector<std::unique_ptr<Call>> filters;
  Value Evaluate(Interpreter& interpreter) const;
};

struct FilterBlock final : Statement {
  FilteredBody body;
  void Execute(Interpreter& interpreter) const override;
};

struct Set final : Statement {
  Target target;
  ExpressionPtr value;  // null: `body`
  FilteredBody body;
  void Execute(Interpreter& interpreter) const override;
};

}  // namespace coppice::jinja
