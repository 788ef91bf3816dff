#include "grammar/ecma_regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/quoted.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

using Assertion = AutomatonBuilder::Assertion;

// ------------------------------------------------------------------------------------------------------------------- characters

// Where dialects differ about a class of characters: those of every dialect, and those of any.
struct CharClass {
  CharSet agreed, possible;

  CharClass Complement() const { return {possible.Complement(), agreed.Complement()}; }
  void Add(const CharClass& other) {
    agreed = agreed | other.agreed;
    possible = possible | other.possible;
  }
};

CharClass Plain(CharSet characters) { return {characters, characters}; }

const CharSet& BeyondAscii() {
  static const CharSet set({{0x80, 0x10FFFF}});
  return set;
}

// Python's and others' are those of Unicode.
const CharClass& Digits() {
  static const CharSet ascii({{'0', '9'}});
  static const CharClass digits{ascii, ascii | BeyondAscii()};
  return digits;
}
const CharClass& WordCharacters() {
  static const CharSet ascii({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
  static const CharClass word{ascii, ascii | BeyondAscii()};
  return word;
}
// ECMA-262 has U+FEFF, Python U+001C to U+001F and U+0085.
const CharClass& Spaces() {
  static const CharSet agreed({{'\t', '\r'},
                               {' ', ' '},
                               {0xA0, 0xA0},
                               {0x1680, 0x1680},
                               {0x2000, 0x200A},
                               {0x2028, 0x2029},
                               {0x202F, 0x202F},
                               {0x205F, 0x205F},
                               {0x3000, 0x3000}});
  static const CharClass spaces{agreed, agreed | CharSet({{0x1C, 0x1F}, {0x85, 0x85}, {0x180E, 0x180E}, {0xFEFF, 0xFEFF}})};
  return spaces;
}
// Characters that a point stands for: none that ends a line; for some engines only \n does.
const CharClass& AnyOfALine() {
  static const CharClass any{CharSet({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}).Complement(), CharSet::Of('\n').Complement()};
  return any;
}

std::optional<CharClass> ClassOfLetter(char letter) {
  switch (letter) {
    case 'd': return Digits();
    case 'D': return Digits().Complement();
    case 'w': return WordCharacters();
    case 'W': return WordCharacters().Complement();
    case 's': return Spaces();
    case 'S': return Spaces().Complement();
    default: return std::nullopt;
  }
}

// ------------------------------------------------------------------------------------------------------------------- parsing

// A part of the expression, as a tree.
struct Node {
  enum class Kind : uint8_t { kSequence, kChoice, kCharacters, kRepeat, kBegin, kEnd } kind = Kind::kSequence;
  std::vector<Node> children;  // of kRepeat one
  CharClass characters;
  int64_t least = 0;
  std::optional<int64_t> most;
};

// A lookahead behind a leading ^: the text begins with what `node` matches, or does not.
struct Lookahead {
  Node node;
  bool negative = false;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Node> Parse() {
    Node node;
    COPPICE_RETURN_IF_ERROR(ParseChoice(&node, 0));
    if (!AtEnd()) return Wrong("a ) without its (");
    return node;
  }
  const std::vector<Lookahead>& lookaheads() const { return lookaheads_; }

 private:
  static constexpr int kMaxDepth = 100;
  static constexpr int64_t kMaxCount = 10000;

  bool AtEnd() const { return place_ >= text_.size(); }
  bool Sees(std::string_view what) const { return text_.substr(place_).starts_with(what); }
  bool Take(std::string_view what) {
    if (!Sees(what)) return false;
    place_ += what.size();
    return true;
  }
  Status Wrong(std::string_view what) const {
    return InvalidArgument(fmt::format("the pattern {} has {} at offset {}", Quoted(text_), what, std::min(place_, text_.size())));
  }
  Status Unsupported(std::string_view what) const {
    return InvalidArgument(
        fmt::format("the pattern {} uses {} at offset {}, which is not supported: write it without, and check "
                    "the answer",
                    Quoted(text_), what, place_));
  }

  Status ParseChoice(Node* node, int depth) {
    if (depth > kMaxDepth) return Wrong(fmt::format("groups nested deeper than {} levels", kMaxDepth));
    node->kind = Node::Kind::kChoice;
    do {
      COPPICE_RETURN_IF_ERROR(ParseSequence(&node->children.emplace_back(), depth));
    } while (Take("|"));
    return OkStatus();
  }

  Status ParseSequence(Node* node, int depth) {
    while (!AtEnd() && !Sees("|") && !Sees(")")) {
      Node& part = node->children.emplace_back();
      bool repeats = true;
      COPPICE_RETURN_IF_ERROR(ParseAtom(&part, &repeats, depth));
      COPPICE_RETURN_IF_ERROR(ParseQuantifier(&part, repeats));
    }
    return OkStatus();
  }

  // `*repeats`: whether a quantifier may follow.
  Status ParseAtom(Node* part, bool* repeats, int depth) {
    if (Take("^")) {
      *repeats = false;
      part->kind = Node::Kind::kBegin;
      return depth == 0 && place_ == 1 ? ParseLookaheads(depth) : OkStatus();
    }
    if (Take("$")) {
      *repeats = false;
      part->kind = Node::Kind::kEnd;
      return OkStatus();
    }
    if (Sees("(?=") || Sees("(?!")) return Unsupported("lookahead elsewhere than right behind a leading ^");
    if (Sees("(?<=") || Sees("(?<!")) return Unsupported("lookbehind");
    if (Take("(")) {
      if (Take("?<")) {
        const size_t end = text_.find('>', place_);
        if (end == text_.npos) return Wrong("a name of a group that does not end");
        place_ = end + 1;
      } else if (Sees("?") && !Take("?:")) {
        return Unsupported("a group of another kind than ( ), (?: ) and (?<name> )");
      }
      COPPICE_RETURN_IF_ERROR(ParseChoice(part, depth + 1));
      return Take(")") ? OkStatus() : Wrong("a ( without its )");
    }
    part->kind = Node::Kind::kCharacters;
    if (Take(".")) {
      part->characters = AnyOfALine();
      return OkStatus();
    }
    if (Take("[")) return ParseClass(&part->characters);
    if (Sees("*") || Sees("+") || Sees("?")) return Wrong("a quantifier with nothing before it");
    if (Take("\\")) return ParseEscape(/*in_class=*/false, &part->characters);
    char32_t c = 0;
    COPPICE_RETURN_IF_ERROR(TakeCharacter(&c));
    part->characters = Plain(CharSet::Of(c));
    return OkStatus();
  }

  Status ParseLookaheads(int depth) {
    while (Sees("(?=") || Sees("(?!")) {
      Lookahead lookahead{.negative = Sees("(?!")};
      place_ += 3;
      COPPICE_RETURN_IF_ERROR(ParseChoice(&lookahead.node, depth + 1));
      if (!Take(")")) return Wrong("a ( without its )");
      lookaheads_.push_back(std::move(lookahead));
    }
    // They are of this alternative alone.
    if (lookaheads_.empty()) return OkStatus();
    int open = 0;
    bool in_class = false;
    for (size_t i = place_; i < text_.size(); ++i) {
      const char c = text_[i];
      if (c == '\\') {
        ++i;
      } else if (in_class || c == '[') {
        in_class = c != ']';
      } else if (c == '|' && open == 0) {
        return Unsupported("lookahead in one of several alternatives");
      } else {
        open += (c == '(') - (c == ')');
      }
    }
    return OkStatus();
  }

  Status ParseQuantifier(Node* part, bool repeats) {
    int64_t least = 0;
    std::optional<int64_t> most;
    if (Take("*")) {
    } else if (Take("+")) {
      least = 1;
    } else if (Take("?")) {
      most = 1;
    } else if (!TakeCounts(&least, &most)) {
      return OkStatus();
    }
    if (!repeats) return Wrong("a quantifier behind ^ or $");
    if (std::max(least, most.value_or(0)) > kMaxCount) return Wrong(fmt::format("a quantifier of more than {}", kMaxCount));
    if (most && *most < least) return Wrong("a quantifier whose bounds are out of order");
    (void)Take("?");  // lazy: the same texts
    Node repeated{.kind = Node::Kind::kRepeat, .least = least, .most = most};
    repeated.children.push_back(std::move(*part));
    *part = std::move(repeated);
    if (Sees("*") || Sees("+") || Sees("?")) return Wrong("a quantifier with nothing before it");
    return OkStatus();
  }

  // {3}, {3,} or {3,9}; other braces are characters.
  bool TakeCounts(int64_t* least, std::optional<int64_t>* most) {
    const size_t end = text_.find('}', place_);
    if (!Sees("{") || end == text_.npos) return false;
    const std::string_view inside = text_.substr(place_ + 1, end - place_ - 1);
    const auto number = [](std::string_view digits, int64_t* value) {
      const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), *value);
      if (parsed.ec == std::errc::result_out_of_range) *value = std::numeric_limits<int64_t>::max();
      return !digits.empty() && digits.find_first_not_of("0123456789") == digits.npos;
    };
    const size_t comma = inside.find(',');
    int64_t last = 0;
    if (!number(inside.substr(0, comma), least)) return false;
    if (comma == inside.npos) {
      *most = *least;
    } else if (comma + 1 < inside.size()) {
      if (!number(inside.substr(comma + 1), &last)) return false;
      *most = last;
    }
    place_ = end + 1;
    return true;
  }

  Status ParseClass(CharClass* characters) {
    const bool negative = Take("^");
    CharClass all;
    while (!Take("]")) {
      if (AtEnd()) return Wrong("a [ without its ]");
      CharClass first;
      COPPICE_RETURN_IF_ERROR(ParseClassAtom(&first));
      if (!Sees("-") || Sees("-]")) {
        all.Add(first);
        continue;
      }
      ++place_;
      if (AtEnd()) return Wrong("a [ without its ]");
      CharClass last;
      COPPICE_RETURN_IF_ERROR(ParseClassAtom(&last));
      const std::optional<char32_t> from = Single(first), to = Single(last);
      if (!from || !to) return Wrong("a range of characters from or to a class");
      if (*from > *to) return Wrong("a range of characters that is out of order");
      all.Add(Plain(CharSet({{*from, *to}})));
    }
    *characters = negative ? all.Complement() : std::move(all);
    return OkStatus();
  }

  static std::optional<char32_t> Single(const CharClass& characters) {
    const std::span<const CharRange> ranges = characters.possible.ranges();
    if (ranges.size() != 1 || ranges[0].first != ranges[0].last) return std::nullopt;
    return ranges[0].first;
  }

  Status ParseClassAtom(CharClass* characters) {
    if (Take("\\")) return ParseEscape(/*in_class=*/true, characters);
    char32_t c = 0;
    COPPICE_RETURN_IF_ERROR(TakeCharacter(&c));
    *characters = Plain(CharSet::Of(c));
    return OkStatus();
  }

  Status TakeCharacter(char32_t* c) {
    const Utf8Char decoded = DecodeUtf8(text_.substr(place_));
    if (decoded.kind != Utf8Kind::kValid) return Wrong("bytes that are no UTF-8");
    place_ += decoded.length;
    *c = decoded.code_point;
    return OkStatus();
  }

  // The escape whose backslash was just read.
  Status ParseEscape(bool in_class, CharClass* characters) {
    if (AtEnd()) return Wrong("a \\ with nothing behind it");
    const char letter = text_[place_];
    if (std::optional<CharClass> letters = ClassOfLetter(letter)) {
      ++place_;
      *characters = *std::move(letters);
      return OkStatus();
    }
    if (letter >= '1' && letter <= '9') return Unsupported("a back reference");
    if (letter == 'k') return Unsupported("a back reference");
    if (letter == 'p' || letter == 'P') return Unsupported("a property of Unicode");
    if ((letter == 'b' || letter == 'B') && !in_class) return Unsupported("a boundary of words");
    char32_t c = 0;
    COPPICE_RETURN_IF_ERROR(TakeEscaped(&c));
    *characters = Plain(CharSet::Of(c));
    return OkStatus();
  }

  Status TakeEscaped(char32_t* c) {
    constexpr std::pair<char, char32_t> kControls[] = {{'t', '\t'}, {'n', '\n'}, {'v', '\v'}, {'f', '\f'},
                                                       {'r', '\r'}, {'0', 0},    {'b', '\b'}};
    const char letter = text_[place_];
    if (const auto control = std::ranges::find(kControls, letter, &std::pair<char, char32_t>::first);
        control != std::end(kControls)) {
      ++place_;
      if (letter == '0' && !AtEnd() && text_[place_] >= '0' && text_[place_] <= '9') return Unsupported("an octal escape");
      *c = control->second;
      return OkStatus();
    }
    if (Take("x")) return TakeHex(2, c);
    if (Take("u{")) {
      const size_t end = text_.find('}', place_);
      if (end == text_.npos || end - place_ > 6) return Wrong("a \\u{ that is no code point");
      COPPICE_RETURN_IF_ERROR(TakeHex(end - place_, c));
      ++place_;
      if (*c > 0x10FFFF) return Wrong("a \\u{ that is no code point");
      return OkStatus();
    }
    if (Take("u")) {
      COPPICE_RETURN_IF_ERROR(TakeHex(4, c));
      if (*c < 0xD800 || *c > 0xDFFF) return OkStatus();
      char32_t low = 0;
      if (*c > 0xDBFF || !Take("\\u")) return Wrong("half a surrogate pair");
      COPPICE_RETURN_IF_ERROR(TakeHex(4, &low));
      if (low < 0xDC00 || low > 0xDFFF) return Wrong("half a surrogate pair");
      *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
      return OkStatus();
    }
    const auto is_letter = [](char l) { return (l >= 'a' && l <= 'z') || (l >= 'A' && l <= 'Z'); };
    if (Sees("c") && place_ + 1 < text_.size() && is_letter(text_[place_ + 1])) {
      *c = static_cast<char32_t>(text_[place_ + 1]) % 32;
      place_ += 2;
      return OkStatus();
    }
    if (is_letter(letter)) return Unsupported(fmt::format("\\{}", letter));
    return TakeCharacter(c);
  }

  Status TakeHex(size_t digits, char32_t* c) {
    const std::string_view hex = text_.substr(place_, digits);
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
    if (digits == 0 || hex.size() != digits || end != hex.data() + hex.size() || error != std::errc())
      return Wrong("an escape whose digits are not hexadecimal");
    place_ += digits;
    *c = value;
    return OkStatus();
  }

  std::string_view text_;
  size_t place_ = 0;
  std::vector<Lookahead> lookaheads_;
};

// ------------------------------------------------------------------------------------------------------------------- building

class Compiler {
 public:
  explicit Compiler(RegexReading reading) : reading_(reading) {}

  // The texts in which `node` has a match.
  std::optional<Automaton> Search(const Node& node) {
    const int32_t begin = builder_.AddState();
    builder_.AddEdge(begin, CharSet::All(), begin);
    const int32_t end = Add(node, begin);
    builder_.AddEdge(end, CharSet::All(), end);
    return builder_.Build(begin, end);
  }

 private:
  // The state in which what `node` matches ends when it begins in `from`.
  int32_t Add(const Node& node, int32_t from) {
    if (full()) return from;
    switch (node.kind) {
      case Node::Kind::kSequence:
        for (const Node& child : node.children) from = Add(child, from);
        return from;
      case Node::Kind::kChoice: {
        const int32_t to = builder_.AddState();
        for (const Node& child : node.children) builder_.AddJump(Add(child, from), to);
        return to;
      }
      case Node::Kind::kCharacters: {
        const int32_t to = builder_.AddState();
        const CharClass& characters = node.characters;
        builder_.AddEdge(from, reading_ == RegexReading::kAgreed ? characters.agreed : characters.possible, to);
        return to;
      }
      case Node::Kind::kRepeat: return AddRepeat(node, from);
      case Node::Kind::kBegin: return AddAssertion(from, Assertion::kBegin);
      case Node::Kind::kEnd: break;
    }
    int32_t before = from;
    if (reading_ == RegexReading::kPossible) {  // some let a line end behind it
      before = builder_.AddState();
      builder_.AddJump(from, before);
      builder_.AddEdge(from, CharSet::Of('\n'), before);
    }
    return AddAssertion(before, Assertion::kEnd);
  }

  int32_t AddAssertion(int32_t from, Assertion assertion) {
    const int32_t to = builder_.AddState();
    builder_.AddJump(from, to, assertion);
    return to;
  }

  int32_t AddRepeat(const Node& node, int32_t from) {
    const Node& child = node.children.front();
    for (int64_t i = 0; i < node.least && !full(); ++i) from = Add(child, from);
    if (!node.most) {
      const int32_t circle = builder_.AddState();
      builder_.AddJump(from, circle);
      builder_.AddJump(Add(child, circle), circle);
      return circle;
    }
    const int32_t to = builder_.AddState();
    builder_.AddJump(from, to);
    for (int64_t i = node.least; i < *node.most && !full(); ++i) {
      // A state of its own, so that ways back into what is repeated do not lead past it.
      const int32_t next = builder_.AddState();
      builder_.AddJump(from, next);
      from = Add(child, next);
      builder_.AddJump(from, to);
    }
    return to;
  }

  bool full() const { return builder_.full(); }

  RegexReading reading_;
  AutomatonBuilder builder_;
};

}  // namespace

Result<Automaton> ParseEcmaRegex(std::string_view regex, RegexReading reading) {
  Parser parser(regex);
  COPPICE_ASSIGN_OR_RETURN(const Node node, parser.Parse());
  std::optional<Automaton> automaton = Compiler(reading).Search(node);
  for (const Lookahead& lookahead : parser.lookaheads()) {
    if (!automaton) break;
    Node anchored;
    anchored.children.push_back({.kind = Node::Kind::kBegin});
    anchored.children.push_back(lookahead.node);
    RegexReading other = reading;
    if (lookahead.negative) other = reading == RegexReading::kAgreed ? RegexReading::kPossible : RegexReading::kAgreed;
    std::optional<Automaton> ahead = Compiler(other).Search(anchored);
    if (ahead && lookahead.negative) ahead = ahead->Complement();
    automaton = ahead ? automaton->Intersect(*ahead) : std::nullopt;
  }
  if (automaton) return *std::move(automaton);
  return InvalidArgument(
      fmt::format("the pattern {} needs an automaton of more than {} states: make it simpler, with fewer and "
                  "smaller counts",
                  Quoted(regex), Automaton::kMaxStates));
}

}  // namespace coppice
