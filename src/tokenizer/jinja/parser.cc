#include "tokenizer/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <set>
#include <utility>

namespace coppice::jinja {
namespace {

using Kind = Token::Kind;

// Blocks within blocks and brackets within brackets; keeps the recursion of parser, interpreter and destructors shallow.
constexpr int kMaxNesting = 100;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Template Run() {
    for (const Token& token : tokens_) {
      if (token.kind == Kind::kName || token.kind == Kind::kString) words_.insert(token.text);
    }
    Body body = ParseBody({});
    if (Peek().kind != Kind::kEnd) FailSyntax(Peek().position, "'" + Peek(1).text + "' has no matching begin");
    for (const auto& [name, position] : macro_calls_) {
      if (!callable_names_.contains(name)) FailUnimplemented(position, "function '" + name + "' is not supported");
    }
    return {.body = std::move(body), .words = std::move(words_), .roles = std::move(roles_), .asks_for_none = asks_for_none_};
  }

 private:
  // Depth of the construct being parsed, for as long as this lives.
  class Nesting {
   public:
    explicit Nesting(Parser* parser) : parser_(parser) {
      if (++parser_->nesting_ > kMaxNesting) {
        FailUnimplemented(parser_->Peek().position,
                          "nested deeper than " + std::to_string(kMaxNesting) + "; simplify the template");
      }
    }
    ~Nesting() { --parser_->nesting_; }
    Nesting(const Nesting&) = delete;

   private:
    Parser* parser_;
  };

  const Token& Peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& Next() {
    const Token& token = Peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool IsOperator(std::string_view text) const { return Peek().kind == Kind::kOperator && Peek().text == text; }
  bool IsName(std::string_view text, size_t ahead = 0) const { return Peek(ahead).kind == Kind::kName && Peek(ahead).text == text; }
  bool TakeOperator(std::string_view text) { return IsOperator(text) && (Next(), true); }
  bool TakeName(std::string_view text) { return IsName(text) && (Next(), true); }

  [[noreturn]] void FailExpected(const std::string& what) const {
    const Token& token = Peek();
    FailSyntax(token.position, "found " + (token.kind == Kind::kEnd ? "the end" : "'" + token.text + "'") + "; expected " + what);
  }
  void ExpectOperator(std::string_view text) {
    if (!TakeOperator(text)) FailExpected("'" + std::string(text) + "'");
  }
  void Expect(Kind kind, const std::string& what) {
    if (Peek().kind != kind) FailExpected(what);
    Next();
  }
  std::string ExpectName(const std::string& what) {
    if (Peek().kind != Kind::kName) FailExpected(what);
    return Next().text;
  }

  template <class Node>
  std::unique_ptr<Node> Make(Position position) const {
    auto node = std::make_unique<Node>();
    node->position = position;
    return node;
  }
  ExpressionPtr MakeLiteral(Position position, Value value) const {
    auto literal = Make<Literal>(position);
    literal->value = std::move(value);
    return literal;
  }

  // Statements

  // Up to a block tag with one of the names in `ends`, or the end of the template; stops before that tag.
  Body ParseBody(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(this);
    Body body;
    for (;;) {
      const Token& token = Peek();
      if (token.kind == Kind::kText) {
        auto text = Make<TemplateText>(token.position);
        text->text = TracedText(Next().text);
        body.push_back(std::move(text));
      } else if (token.kind == Kind::kVariableBegin) {
        Next();
        auto output = Make<Output>(token.position);
        output->value = ParseExpressionList();
        Expect(Kind::kVariableEnd, "}}");
        body.push_back(std::move(output));
      } else if (token.kind == Kind::kBlockBegin) {
        const bool ends_here = std::any_of(ends.begin(), ends.end(), [this](std::string_view end) { return IsName(end, 1); });
        if (ends_here) return body;
        body.push_back(ParseBlock());
      } else {
        return body;
      }
    }
  }

  std::unique_ptr<Statement> ParseBlock() {
    const Position position = Next().position;  // {%
    const Token& keyword = Peek();
    if (TakeName("if")) return ParseIf(position);
    if (TakeName("for")) return ParseFor(position);
    if (TakeName("set")) return ParseSet(position);
    if (TakeName("macro")) return ParseMacro(position);
    if (TakeName("call")) return ParseCallBlock(position);
    if (TakeName("filter")) return ParseFilterBlock(position);
    if (TakeName("with")) return ParseWith(position);
    if (TakeName("generation")) return ParseGeneration(position);
    if (IsName("break") || IsName("continue")) return ParseLoopControl(position);
    if (keyword.kind != Kind::kName) FailExpected("the name of a block");
    constexpr std::string_view kEnds[] = {"elif",    "else",      "endif",   "endfor", "endset",       "endmacro",
                                          "endcall", "endfilter", "endwith", "endraw", "endgeneration"};
    if (std::find(std::begin(kEnds), std::end(kEnds), keyword.text) != std::end(kEnds)) {
      FailSyntax(keyword.position, "'" + keyword.text + "' has no matching begin");
    }
    FailUnimplemented(
        keyword.position,
        "block '" + keyword.text + "' is not supported; if, for, set, macro, call, filter, with, raw, break and continue are");
  }

  // {% name %}
  void ExpectBlock(std::string_view name) {
    if (Peek().kind != Kind::kBlockBegin || !IsName(name, 1)) FailExpected("{% " + std::string(name) + " %}");
    Next(), Next();
    Expect(Kind::kBlockEnd, "%}");
  }

  bool TakeBlockBegin(std::string_view name) {
    if (Peek().kind != Kind::kBlockBegin || !IsName(name, 1)) return false;
    Next(), Next();
    return true;
  }

  std::unique_ptr<Statement> ParseIf(Position position) {
    auto node = Make<If>(position);
    do {
      ExpressionPtr condition = ParseExpressionList();
      Expect(Kind::kBlockEnd, "%}");
      node->branches.emplace_back(std::move(condition), ParseBody({"elif", "else", "endif"}));
    } while (TakeBlockBegin("elif"));
    if (TakeBlockBegin("else")) {
      Expect(Kind::kBlockEnd, "%}");
      node->otherwise = ParseBody({"endif"});
    }
    ExpectBlock("endif");
    return node;
  }

  // One target, or several with commas between them; `is_field_allowed`: name.field too.
  Target ParseTargets(bool is_field_allowed) {
    const Nesting nesting(this);
    Target tuple = {.is_tuple = true};
    bool has_comma = false;
    do {
      if (has_comma && IsOperator(")")) break;  // (a,)
      tuple.parts.push_back(ParseTarget(is_field_allowed));
    } while (TakeOperator(",") && (has_comma = true));
    if (has_comma) return tuple;
    Target single = std::move(tuple.parts[0]);
    return single;
  }

  Target ParseTarget(bool is_field_allowed) {
    Target target;
    if (TakeOperator("(")) {
      target = ParseTargets(false);
      ExpectOperator(")");
      return target;
    }
    target.name = ExpectName("a variable's name");
    callable_names_.insert(target.name);
    if (is_field_allowed && TakeOperator(".")) target.field = ExpectName("a field's name");
    return target;
  }

  std::unique_ptr<Statement> ParseFor(Position position) {
    auto node = Make<For>(position);
    node->target = ParseTargets(false);
    if (!TakeName("in")) FailExpected("'in'");
    node->iterable = ParseTuple(&Parser::ParseOr);  // a conditional here would take the loop's own "if"
    if (TakeName("if")) node->filter = ParseExpression();
    if (IsName("recursive")) FailUnimplemented(Peek().position, "'recursive' loops are not supported");
    Expect(Kind::kBlockEnd, "%}");
    ++loops_;
    node->body = ParseBody({"else", "endfor"});
    --loops_;
    if (TakeBlockBegin("else")) {
      Expect(Kind::kBlockEnd, "%}");
      node->otherwise = ParseBody({"endfor"});
    }
    ExpectBlock("endfor");
    return node;
  }

  std::unique_ptr<Statement> ParseMacro(Position position) {
    auto node = Make<Macro>(position);
    node->name = ExpectName("a macro's name");
    callable_names_.insert(node->name);
    ExpectOperator("(");
    ParseParameters(node.get());
    ParseMacroBody("endmacro", node.get());
    return node;
  }

  // After the opening parenthesis.
  void ParseParameters(Macro* macro) {
    while (!TakeOperator(")")) {
      std::string name = ExpectName("a parameter's name");
      callable_names_.insert(name);
      ExpressionPtr otherwise = TakeOperator("=") ? ParseExpression() : nullptr;
      if (otherwise == nullptr && !macro->parameters.empty() && macro->parameters.back().second != nullptr) FailExpected("'='");
      macro->parameters.emplace_back(std::move(name), std::move(otherwise));
      if (!IsOperator(")")) ExpectOperator(",");
    }
  }

  // From the end of the opening tag.
  void ParseMacroBody(std::string_view end, Macro* macro) {
    Expect(Kind::kBlockEnd, "%}");
    const int loops = std::exchange(loops_, 0);
    open_macros_.push_back(macro);
    macro->body = ParseBody({end});
    open_macros_.pop_back();
    loops_ = loops;
    ExpectBlock(end);
    // A parameter of the name is one like others.
    for (const auto& [name, otherwise] : macro->parameters) {
      if (name == "caller" && macro->takes_caller && otherwise == nullptr)
        FailSyntax(macro->position, "the parameter 'caller' needs a default");
      if (name == "caller") macro->takes_caller = false;
      if (name == "varargs") macro->takes_varargs = false;
      if (name == "kwargs") macro->takes_kwargs = false;
    }
  }

  // Names that a macro's body reads decide which arguments it takes, and so do those in the body of a macro within it.
  void NoteRead(const std::string& name) {
    for (Macro* macro : open_macros_) {
      macro->takes_caller |= name == "caller";
      macro->takes_varargs |= name == "varargs";
      macro->takes_kwargs |= name == "kwargs";
    }
  }

  std::unique_ptr<Statement> ParseCallBlock(Position position) {
    auto node = Make<CallBlock>(position);
    node->caller.position = position;
    if (TakeOperator("(")) ParseParameters(&node->caller);
    const Position call_position = Peek().position;
    ExpressionPtr call = ParseExpression();
    if (dynamic_cast<MacroCall*>(call.get()) == nullptr)
      FailUnimplemented(call_position, "a call block of what is no macro is not supported");
    node->call.reset(static_cast<MacroCall*>(call.release()));
    ParseMacroBody("endcall", &node->caller);
    return node;
  }

  std::unique_ptr<Statement> ParseFilterBlock(Position position) {
    auto node = Make<FilterBlock>(position);
    node->body.filters.push_back(ParseFilter(nullptr));
    ParseFilteredBody("endfilter", &node->body);
    return node;
  }

  // Filters after the first, the end of the opening tag, the body, the closing tag.
  void ParseFilteredBody(std::string_view end, FilteredBody* body) {
    while (TakeOperator("|")) body->filters.push_back(ParseFilter(nullptr));
    Expect(Kind::kBlockEnd, "%}");
    body->body = ParseBody({end});
    ExpectBlock(end);
  }

  std::unique_ptr<Statement> ParseWith(Position position) {
    auto node = Make<With>(position);
    while (Peek().kind != Kind::kBlockEnd) {
      if (!node->assignments.empty()) ExpectOperator(",");
      Target target = ParseTargets(false);
      ExpectOperator("=");
      node->assignments.emplace_back(std::move(target), ParseExpression());
    }
    Expect(Kind::kBlockEnd, "%}");
    node->body = ParseBody({"endwith"});
    ExpectBlock("endwith");
    return node;
  }

  std::unique_ptr<Statement> ParseGeneration(Position position) {
    auto node = Make<Block>(position);
    Expect(Kind::kBlockEnd, "%}");
    node->body = ParseBody({"endgeneration"});
    ExpectBlock("endgeneration");
    return node;
  }

  std::unique_ptr<Statement> ParseLoopControl(Position position) {
    auto node = Make<LoopControl>(position);
    if (loops_ == 0) FailSyntax(Peek().position, "'" + Peek().text + "' outside of a loop");
    node->is_break = Next().text == "break";
    Expect(Kind::kBlockEnd, "%}");
    return node;
  }

  std::unique_ptr<Statement> ParseSet(Position position) {
    auto node = Make<Set>(position);
    node->target = ParseTargets(true);
    if (TakeOperator("=")) {
      node->value = ParseExpressionList();
      Expect(Kind::kBlockEnd, "%}");
      return node;
    }
    if (!IsOperator("|") && Peek().kind != Kind::kBlockEnd) FailExpected("'=' or %}");
    ParseFilteredBody("endset", &node->body);
    return node;
  }

  // Expressions, loosest binding first

  using Rule = ExpressionPtr (Parser::*)();

  // One expression, or a tuple without parentheses: a, b
  ExpressionPtr ParseTuple(Rule rule) {
    const Position position = Peek().position;
    ExpressionPtr first = (this->*rule)();
    if (!IsOperator(",")) return first;
    auto tuple = Make<ListLiteral>(position);
    tuple->is_tuple = true;
    tuple->items.push_back(std::move(first));
    while (TakeOperator(",")) {
      if (Peek().kind == Kind::kBlockEnd || Peek().kind == Kind::kVariableEnd || IsOperator(")")) break;
      tuple->items.push_back((this->*rule)());
    }
    return tuple;
  }
  ExpressionPtr ParseExpressionList() { return ParseTuple(&Parser::ParseExpression); }

  ExpressionPtr ParseExpression() {
    const Nesting nesting(this);
    const Position position = Peek().position;
    ExpressionPtr value = ParseOr();
    while (TakeName("if")) {
      auto node = Make<Conditional>(position);
      node->then = std::move(value);
      node->condition = ParseOr();
      if (TakeName("else")) node->otherwise = ParseExpression();
      value = std::move(node);
    }
    return value;
  }

  ExpressionPtr ParseLogic(std::string_view name, Rule operand) {
    ExpressionPtr left = (this->*operand)();
    while (IsName(name)) {
      auto node = Make<Logic>(Next().position);
      node->is_and = name == "and";
      node->left = std::move(left);
      node->right = (this->*operand)();
      left = std::move(node);
    }
    return left;
  }
  ExpressionPtr ParseOr() { return ParseLogic("or", &Parser::ParseAnd); }
  ExpressionPtr ParseAnd() { return ParseLogic("and", &Parser::ParseNot); }

  ExpressionPtr ParseNot() {
    if (!IsName("not")) return ParseComparison();
    auto node = Make<Unary>(Peek().position);
    node->op = Next().text;
    node->operand = ParseNot();
    return node;
  }

  // Empty: no comparison follows.
  std::string TakeComparison() {
    if (Peek().kind == Kind::kOperator) {
      for (std::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (TakeOperator(op)) return std::string(op);
      }
    }
    if (TakeName("in")) return "in";
    if (!IsName("not") || !IsName("in", 1)) return "";
    Next(), Next();
    return "not in";
  }

  ExpressionPtr ParseComparison() {
    const Position position = Peek().position;
    ExpressionPtr first = ParseSum();
    auto node = Make<Comparison>(position);
    for (std::string op = TakeComparison(); !op.empty(); op = TakeComparison()) node->rest.emplace_back(op, ParseSum());
    if (node->rest.empty()) return first;
    node->first = std::move(first);
    const Expression* left = node->first.get();
    for (const auto& [op, right] : node->rest) {
      NoteRole(*left, *right);
      asks_for_none_ |= (Ends(*left, "content") && IsNone(*right)) || (IsNone(*left) && Ends(*right, "content"));
      left = right.get();
    }
    return node;
  }

  // Roles that the template knows: of two expressions that are compared, the one is a role and the other has strings.
  void NoteRole(const Expression& left, const Expression& right) {
    if (Ends(left, "role")) NoteStrings(right, &roles_);
    if (Ends(right, "role")) NoteStrings(left, &roles_);
  }
  // message.role, message['role'] or message.get('role') of the field "role", or a variable whose name ends so; through filters and
  // methods too.
  static bool Ends(const Expression& expression, std::string_view field) {
    if (const auto* name = dynamic_cast<const NameReference*>(&expression)) return name->name.ends_with(field);
    if (const auto* call = dynamic_cast<const Call*>(&expression)) {
      Names strings;
      for (const ExpressionPtr& argument : call->arguments.positional) NoteStrings(*argument, &strings);
      return strings.contains(field) || (call->object != nullptr && Ends(*call->object, field));
    }
    const auto* subscript = dynamic_cast<const Subscript*>(&expression);
    Names index;
    if (subscript != nullptr) NoteStrings(*subscript->index, &index);
    return index.contains(field);
  }
  static bool IsNone(const Expression& expression) {
    const auto* literal = dynamic_cast<const Literal*>(&expression);
    return literal != nullptr && literal->value.Is<None>();
  }
  static void NoteStrings(const Expression& expression, Names* strings) {
    if (const auto* list = dynamic_cast<const ListLiteral*>(&expression)) {
      for (const ExpressionPtr& item : list->items) NoteStrings(*item, strings);
    }
    const auto* literal = dynamic_cast<const Literal*>(&expression);
    if (literal != nullptr && literal->value.IsString()) strings->insert(literal->value.AsString());
  }

  ExpressionPtr ParseArithmetic(std::initializer_list<std::string_view> operators, Rule operand) {
    ExpressionPtr left = (this->*operand)();
    const auto follows = [&] {
      return std::any_of(operators.begin(), operators.end(), [this](auto op) { return IsOperator(op); });
    };
    while (follows()) {
      auto node = Make<Arithmetic>(Peek().position);
      node->op = Next().text;
      node->left = std::move(left);
      node->right = (this->*operand)();
      left = std::move(node);
    }
    return left;
  }
  ExpressionPtr ParseSum() { return ParseArithmetic({"+", "-"}, &Parser::ParseConcatenation); }
  ExpressionPtr ParseConcatenation() { return ParseArithmetic({"~"}, &Parser::ParseProduct); }
  ExpressionPtr ParseProduct() { return ParseArithmetic({"*", "/", "//", "%"}, &Parser::ParsePower); }
  ExpressionPtr ParsePower() { return ParseArithmetic({"**"}, &Parser::ParseFiltered); }  // from left to right, as Jinja

  // Filters and tests bind tighter than any operator, but looser than a sign: -x | abs is (-x) | abs.
  ExpressionPtr ParseFiltered() {
    ExpressionPtr value = ParseSigned();
    for (;;) {
      if (TakeOperator("|")) {
        value = ParseFilter(std::move(value));
      } else if (TakeName("is")) {
        value = ParseTest(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr ParseSigned() {
    if (!IsOperator("-") && !IsOperator("+")) return ParsePostfix();
    auto node = Make<Unary>(Peek().position);
    node->op = Next().text;
    node->operand = ParseSigned();
    return node;
  }

  std::unique_ptr<Call> ParseFilter(ExpressionPtr object) {
    auto node = Make<Call>(Peek().position);
    const std::string name = ExpectName("a filter's name");
    node->function = FindFilter(name);
    if (node->function == nullptr) FailUnimplemented(node->position, "filter '" + name + "' is not supported");
    node->object = std::move(object);
    if (TakeOperator("(")) node->arguments = ParseArguments();
    NoteSelectedRoles(node->arguments.positional);
    return node;
  }

  // messages | selectattr('role', 'equalto', 'tool')
  void NoteSelectedRoles(const std::vector<ExpressionPtr>& arguments) {
    Names first;
    if (arguments.size() < 3) return;
    NoteStrings(*arguments[0], &first);
    if (first.contains("role")) NoteStrings(*arguments[2], &roles_);
  }

  ExpressionPtr ParseTest(ExpressionPtr object) {
    auto node = Make<Call>(Peek().position);
    node->negated = TakeName("not");
    const std::string name = ExpectName("a test's name");
    node->function = FindTest(name);
    if (node->function == nullptr) FailUnimplemented(node->position, "test '" + name + "' is not supported");
    node->object = std::move(object);
    if (TakeOperator("(")) {
      node->arguments = ParseArguments();
    } else if (BeginsBareArgument()) {  // x is equalto 3
      node->arguments.positional.push_back(ParsePostfix());
    }
    for (const ExpressionPtr& argument : node->arguments.positional) NoteRole(*node->object, *argument);
    asks_for_none_ |= name == "none" && Ends(*node->object, "content");
    return node;
  }

  bool BeginsBareArgument() const {
    const Token& token = Peek();
    if (token.kind == Kind::kString || token.kind == Kind::kInteger || token.kind == Kind::kFloat) return true;
    if (token.kind == Kind::kOperator) return token.text == "[" || token.text == "{";
    if (token.kind != Kind::kName) return false;
    constexpr std::string_view kKeywords[] = {"else", "or", "and", "is", "if", "in", "not"};
    return std::find(std::begin(kKeywords), std::end(kKeywords), token.text) == std::end(kKeywords);
  }

  // After the opening parenthesis.
  CallArguments ParseArguments() {
    CallArguments arguments;
    while (!TakeOperator(")")) {
      if (arguments.more_named != nullptr) FailExpected("')'");
      const bool named = Peek().kind == Kind::kName && Peek(1).kind == Kind::kOperator && Peek(1).text == "=";
      if (named) {
        std::string name = Next().text;
        Next();
        arguments.named.emplace_back(std::move(name), ParseExpression());
      } else if (TakeOperator("**")) {
        arguments.more_named = ParseExpression();
      } else if (IsOperator("*") && arguments.more_positional == nullptr) {
        Next();
        arguments.more_positional = ParseExpression();
      } else {
        if (!arguments.named.empty() || arguments.more_positional != nullptr) FailExpected("a named argument");
        arguments.positional.push_back(ParseExpression());
      }
      if (!IsOperator(")")) ExpectOperator(",");
    }
    return arguments;
  }

  ExpressionPtr ParsePostfix() {
    ExpressionPtr value = ParsePrimary();
    for (;;) {
      const Position position = Peek().position;
      if (TakeOperator(".")) {
        value = ParseAttribute(std::move(value), position);
      } else if (TakeOperator("[")) {
        value = ParseSubscript(std::move(value), position);
      } else if (IsOperator("(")) {
        FailUnimplemented(position, "calling a value is not supported; only built-in functions and methods can be called");
      } else {
        return value;
      }
    }
  }

  // object.name, object.0 or object.method(...)
  ExpressionPtr ParseAttribute(ExpressionPtr object, Position position) {
    if (Peek().kind == Kind::kName && Peek(1).kind == Kind::kOperator && Peek(1).text == "(") {
      const Token& name = Next();
      Next();
      auto node = Make<Call>(name.position);
      node->function = FindMethod(name.text);
      if (node->function == nullptr) FailUnimplemented(name.position, "method '" + name.text + "' is not supported");
      node->object = std::move(object);
      node->arguments = ParseArguments();
      return node;
    }
    auto node = Make<Subscript>(position);
    node->is_attribute = true;
    node->object = std::move(object);
    if (Peek().kind == Kind::kInteger) {
      node->index = ParseInteger();
    } else {
      const Position name_position = Peek().position;
      node->index = MakeLiteral(name_position, TracedText(ExpectName("a name or an index after '.'")));
    }
    return node;
  }

  ExpressionPtr ParseSubscript(ExpressionPtr object, Position position) {
    const auto part = [this]() -> ExpressionPtr { return IsOperator(":") || IsOperator("]") ? nullptr : ParseExpression(); };
    ExpressionPtr start = part();
    if (!IsOperator(":")) {
      if (start == nullptr) FailExpected("an index");
      auto node = Make<Subscript>(position);
      node->object = std::move(object);
      node->index = std::move(start);
      ExpectOperator("]");
      return node;
    }
    auto node = Make<Slice>(position);
    node->object = std::move(object);
    node->start = std::move(start);
    Next();
    node->stop = part();
    if (TakeOperator(":")) node->step = part();
    ExpectOperator("]");
    return node;
  }

  ExpressionPtr ParseInteger() {
    const Token& token = Next();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
    if (error != std::errc()) FailUnimplemented(token.position, "the number " + token.text + " does not fit 64 bits");
    return MakeLiteral(token.position, value);
  }

  ExpressionPtr ParsePrimary() {
    const Token& token = Peek();
    switch (token.kind) {
      case Kind::kName: return ParseNameOrFunction();
      case Kind::kInteger: return ParseInteger();
      case Kind::kFloat: {
        double value = 0;
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
        return MakeLiteral(Next().position, value);
      }
      case Kind::kString: {
        std::string text = Next().text;
        while (Peek().kind == Kind::kString) text += Next().text;  // adjacent strings are one
        return MakeLiteral(token.position, TracedText(std::move(text)));
      }
      default: break;
    }
    if (TakeOperator("(")) return ParseParenthesised(token.position);
    if (TakeOperator("[")) return ParseList(token.position);
    if (TakeOperator("{")) return ParseDict(token.position);
    FailExpected("an expression");
  }

  ExpressionPtr ParseNameOrFunction() {
    const Token& token = Next();
    const std::string& name = token.text;
    if (name == "true" || name == "True") return MakeLiteral(token.position, true);
    if (name == "false" || name == "False") return MakeLiteral(token.position, false);
    if (name == "none" || name == "None") return MakeLiteral(token.position, None{});
    NoteRead(name);
    if (!TakeOperator("(")) {
      auto node = Make<NameReference>(token.position);
      node->name = name;
      return node;
    }
    if (const Builtin function = FindFunction(name); function != nullptr) {
      auto node = Make<Call>(token.position);
      node->function = function;
      node->arguments = ParseArguments();
      return node;
    }
    macro_calls_.emplace_back(name, token.position);  // it may be defined further down
    auto node = Make<MacroCall>(token.position);
    node->name = name;
    node->arguments = ParseArguments();
    return node;
  }

  ExpressionPtr ParseParenthesised(Position position) {
    if (TakeOperator(")")) {
      auto tuple = Make<ListLiteral>(position);
      tuple->is_tuple = true;
      return tuple;
    }
    ExpressionPtr value = ParseExpressionList();
    ExpectOperator(")");
    return value;
  }

  ExpressionPtr ParseList(Position position) {
    auto node = Make<ListLiteral>(position);
    while (!TakeOperator("]")) {
      node->items.push_back(ParseExpression());
      if (!IsOperator("]")) ExpectOperator(",");
    }
    return node;
  }

  ExpressionPtr ParseDict(Position position) {
    auto node = Make<DictLiteral>(position);
    while (!TakeOperator("}")) {
      ExpressionPtr key = ParseExpression();
      ExpectOperator(":");
      node->fields.emplace_back(std::move(key), ParseExpression());
      if (!IsOperator("}")) ExpectOperator(",");
    }
    return node;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;                                      // around what is being parsed, within its macro
  std::set<std::string> callable_names_ = {"caller"};  // of macros, and of variables, which may hold one
  std::vector<Macro*> open_macros_;                    // whose bodies are being parsed, innermost last
  std::vector<std::pair<std::string, Position>> macro_calls_;
  Names words_, roles_;  // these and the next one: Template
  bool asks_for_none_ = false;
};

}  // namespace

Template ParseTemplate(std::string_view source) { return Parser(Tokenize(source)).Run(); }

}  // namespace coppice::jinja
