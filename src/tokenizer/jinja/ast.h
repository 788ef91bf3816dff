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

struct ListLiteral final : Expression {  // tuples too
  std::vector<ExpressionPtr> items;
  Value Evaluate(Interpreter& interpreter) const override;
};

struct DictLiteral final : Expression {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> fields;
  Value Evaluate(Interpreter& interpreter) const override;
};

struct Subscript final : Expression {  // object[index]; object.name has a literal index
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
  std::string op;  // + - * / // % ~
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
  ExpressionPtr object;  // null for functions
  CallArguments arguments;
  Value Evaluate(Interpreter& interpreter) const override;
};

struct MacroCall final : Expression {  // name(...) of what is no built-in
  std::string name;
  CallArguments arguments;
  Value Evaluate(Interpreter& interpreter) const override;
};

// Statements

struct Text final : Statement {
  std::string text;
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
  std::vector<std::string> targets;
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
  Body body;
  void Execute(Interpreter& interpreter) const override;
};

struct Set final : Statement {
  std::vector<std::string> targets;
  std::string field;    // of the namespace targets[0]; empty: the variables themselves
  ExpressionPtr value;  // null: what `body` prints
  Body body;
  void Execute(Interpreter& interpreter) const override;
};

}  // namespace coppice::jinja
