#include "tokenizer/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "tokenizer/jinja/value.h"
#include "tokenizer/utf8.h"

namespace coppice::jinja {
namespace {

using Kind = Token::Kind;

// Bounds the length of expression chains, and with it the depth of the syntax tree; real templates stay below 300.
constexpr size_t kMaxTokensInTag = 1000;

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsNameStart(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string Located(Position position, const std::string& message) {
  return "chat template, line " + std::to_string(position.line) + ", column " + std::to_string(position.column) + ": " + message;
}

// Jinja reads \r\n and \r as \n, and drops one newline at the end.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      out += '\n';
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> Run() {
    bool line_starting = true;  // the text that follows begins a line
    while (at_ < source_.size()) {
      const size_t open = FindTag();
      const char type = open < source_.size() ? source_[open + 1] : '\0';
      const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
      AddText(std::string_view(source_).substr(at_, open - at_), type, sign, line_starting);
      if (type == '\0') break;
      at_ = open;
      const Position tag = Here();
      at_ += sign == '-' || sign == '+' ? 3 : 2;
      if (type == '#') {
        SkipComment(tag);
      } else if (type == '%' && TakeWordTag("raw", false)) {
        ReadRaw(tag);
      } else {
        ReadTag(type, tag);
      }
      line_starting = source_[at_ - 1] == '\n';
    }
    at_ = source_.size();
    Add(Kind::kEnd, "", Here());
    return std::move(tokens_);
  }

 private:
  bool StartsWith(std::string_view what) const { return std::string_view(source_).substr(at_).substr(0, what.size()) == what; }

  Position Here() {
    for (; counted_ < at_; ++counted_) {
      if (source_[counted_] != '\n') continue;
      ++line_;
      line_begin_ = counted_ + 1;
    }
    return {line_, static_cast<int>(at_ - line_begin_) + 1};
  }

  void Add(Kind kind, std::string text, Position position) { tokens_.push_back({kind, std::move(text), position}); }

  size_t FindTag() const {
    size_t open = at_;
    while ((open = source_.find('{', open)) != std::string::npos && open + 1 < source_.size()) {
      if (const char next = source_[open + 1]; next == '{' || next == '%' || next == '#') return open;
      ++open;
    }
    return source_.size();
  }

  // The text before a tag of this type and sign ('\0': the end of the template).
  void AddText(std::string_view text, char type, char sign, bool line_starting) {
    const Position position = Here();
    if (type != '\0' && sign == '-') {
      while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
    } else if ((type == '%' || type == '#') && sign != '+') {  // lstrip_blocks
      const size_t newline = text.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      const bool blank = std::all_of(text.begin() + static_cast<std::ptrdiff_t>(line), text.end(), IsSpace);
      if (blank && (line > 0 || line_starting)) text = text.substr(0, line);
    }
    if (!text.empty()) Add(Kind::kText, std::string(text), position);
  }

  void SkipSpace() {
    while (at_ < source_.size() && IsSpace(source_[at_])) ++at_;
  }

  // After a tag's end: `sign` is the one before it.
  void SkipAfterTag(char sign, bool trim_newline) {
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && trim_newline && StartsWith("\n")) {  // trim_blocks
      ++at_;
    }
  }

  void SkipComment(Position tag) {
    const size_t close = source_.find("#}", at_);
    if (close == std::string::npos) FailSyntax(tag, "this comment has no end; expected #}");
    const char sign = close > at_ ? source_[close - 1] : '\0';
    at_ = close + 2;
    SkipAfterTag(sign, true);
  }

  // The rest of a tag that is only `word`, after its beginning and sign; false, and nothing is read, if it is another.
  bool TakeWordTag(std::string_view word, bool trims_newline) {
    const size_t begin = at_;
    SkipSpace();
    if (StartsWith(word)) {
      at_ += word.size();
      SkipSpace();
      const char sign = at_ < source_.size() ? source_[at_] : '\0';
      if (sign == '-' || (sign == '+' && trims_newline)) ++at_;
      if (StartsWith("%}")) {
        at_ += 2;
        SkipAfterTag(sign, trims_newline);
        return true;
      }
    }
    at_ = begin;
    return false;
  }

  // The text up to {% endraw %}, in which tags mean nothing; after {% raw %}, whose newline stays.
  void ReadRaw(Position tag) {
    if (at_ == source_.size()) return;  // as Jinja
    const size_t begin = at_;
    const bool line_starting = source_[at_ - 1] == '\n';
    for (size_t open = at_; (open = source_.find("{%", open)) != std::string::npos; open += 2) {
      const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
      at_ = open + (sign == '-' || sign == '+' ? 3 : 2);
      if (!TakeWordTag("endraw", true)) continue;
      const size_t end = std::exchange(at_, begin);
      AddText(std::string_view(source_).substr(begin, open - begin), '%', sign, line_starting);
      at_ = end;
      return;
    }
    FailSyntax(tag, "this raw block has no end; expected {% endraw %}");
  }

  // Reads up to the end of a {{ or {% tag. The end is not looked for inside brackets: {{ {'a': {}} }}.
  void ReadTag(char type, Position tag) {
    const bool variable = type == '{';
    const std::string_view close = variable ? "}}" : "%}";
    Add(variable ? Kind::kVariableBegin : Kind::kBlockBegin, variable ? "{{" : "{%", tag);
    const size_t first = tokens_.size();
    std::string brackets;  // the closing ones expected
    for (;;) {
      SkipSpace();
      if (at_ == source_.size()) FailSyntax(tag, "this tag has no end; expected " + std::string(close));
      const Position position = Here();
      if (brackets.empty()) {
        const bool signed_end =
            (source_[at_] == '-' || (source_[at_] == '+' && !variable)) && std::string_view(source_).substr(at_ + 1, 2) == close;
        if (signed_end || StartsWith(close)) {
          const char sign = signed_end ? source_[at_] : '\0';
          at_ += signed_end ? 3 : 2;
          Add(variable ? Kind::kVariableEnd : Kind::kBlockEnd, std::string(close), position);
          SkipAfterTag(sign, !variable);
          return;
        }
      }
      if (tokens_.size() - first >= kMaxTokensInTag) {
        FailUnimplemented(tag, "this tag has more than " + std::to_string(kMaxTokensInTag) + " tokens; split it");
      }
      ReadToken(position, &brackets);
    }
  }

  void ReadToken(Position position, std::string* brackets) {
    const char c = source_[at_];
    if (IsNameStart(c)) {
      Add(Kind::kName, TakeWhile([](char x) { return IsNameStart(x) || IsAsciiDigit(x); }), position);
    } else if (IsAsciiDigit(c)) {
      ReadNumber(position);
    } else if (c == '\'' || c == '"') {
      ReadString(position);
    } else {
      ReadOperator(position, brackets);
    }
  }

  template <class Predicate>
  std::string TakeWhile(Predicate predicate) {
    const size_t begin = at_;
    while (at_ < source_.size() && predicate(source_[at_])) ++at_;
    return source_.substr(begin, at_ - begin);
  }

  void ReadNumber(Position position) {
    std::string text = TakeWhile([](char x) { return IsAsciiDigit(x) || x == '_'; });
    std::erase(text, '_');
    Kind kind = Kind::kInteger;
    // foo.0.bar: digits after a dot are an index, not the integer part of a float.
    const bool after_dot = !tokens_.empty() && tokens_.back().kind == Kind::kOperator && tokens_.back().text == ".";
    if (!after_dot && at_ + 1 < source_.size() && source_[at_] == '.' && IsAsciiDigit(source_[at_ + 1])) {
      kind = Kind::kFloat;
      ++at_;
      text += '.' + TakeWhile(IsAsciiDigit);
    }
    if (!after_dot && at_ < source_.size() && (source_[at_] == 'e' || source_[at_] == 'E')) {
      const bool signed_exponent = at_ + 1 < source_.size() && (source_[at_ + 1] == '+' || source_[at_ + 1] == '-');
      const size_t digits = at_ + (signed_exponent ? 2 : 1);
      if (digits < source_.size() && IsAsciiDigit(source_[digits])) {
        kind = Kind::kFloat;
        text += source_.substr(at_, digits - at_);
        at_ = digits;
        text += TakeWhile(IsAsciiDigit);
      }
    }
    Add(kind, std::move(text), position);
  }

  void ReadString(Position position) {
    const char quote = source_[at_++];
    std::string value;
    for (;;) {
      if (at_ == source_.size()) FailSyntax(position, std::string("this string has no end; expected ") + quote);
      const char c = source_[at_++];
      if (c == quote) break;
      if (c == '\\' && at_ < source_.size()) {
        ReadEscape(&value);
      } else {
        value += c;
      }
    }
    Add(Kind::kString, std::move(value), position);
  }

  // The escapes of Python; an unknown one stays as it is written.
  void ReadEscape(std::string* value) {
    const char c = source_[at_++];
    constexpr std::string_view kEscapes = "nrtabfv0\\'\"", kMeanings("\n\r\t\a\b\f\v\0\\'\"", 11);
    if (const size_t index = kEscapes.find(c); index != std::string_view::npos) {
      *value += kMeanings[index];
      return;
    }
    if (c == '\n') return;  // a line continued
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const char* begin = source_.data() + at_;
    const char* end = begin + std::min(digits, source_.size() - at_);
    uint32_t code_point = 0;
    const bool hex = digits > 0 && std::from_chars(begin, end, code_point, 16).ptr == begin + digits;
    if (hex && code_point <= 0x10FFFF && (code_point < 0xD800 || code_point > 0xDFFF)) {
      AppendUtf8(code_point, value);
      at_ += digits;
    } else {
      value->append({'\\', c});
    }
  }

  void ReadOperator(Position position, std::string* brackets) {
    constexpr std::array<std::string_view, 6> kLong = {"==", "!=", "<=", ">=", "//", "**"};
    constexpr std::string_view kShort = "+-*/%~|.,:<>=()[]{}", kOpening = "([{", kClosing = ")]}";
    const auto found = std::find_if(kLong.begin(), kLong.end(), [this](std::string_view op) { return StartsWith(op); });
    const std::string text = found != kLong.end() ? std::string(*found) : source_.substr(at_, 1);
    if (found == kLong.end() && kShort.find(text) == std::string_view::npos) {
      FailSyntax(position, "unexpected character '" + text + "'");
    }
    if (const size_t index = kOpening.find(text); index != std::string_view::npos) {
      brackets->push_back(kClosing[index]);
    } else if (kClosing.find(text) != std::string_view::npos) {
      if (brackets->empty() || brackets->back() != text[0]) FailSyntax(position, "'" + text + "' closes nothing");
      brackets->pop_back();
    }
    at_ += text.size();
    Add(Kind::kOperator, text, position);
  }

  std::string source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  size_t counted_ = 0, line_begin_ = 0;  // Here()'s progress
  int line_ = 1;
};

}  // namespace

void FailSyntax(Position position, const std::string& message) { throw Error{InvalidArgument(Located(position, message))}; }
void FailUnimplemented(Position position, const std::string& message) { throw Error{Unimplemented(Located(position, message))}; }

std::vector<Token> Tokenize(std::string_view source) { return Lexer(NormalizeNewlines(source)).Run(); }

}  // namespace coppice::jinja
