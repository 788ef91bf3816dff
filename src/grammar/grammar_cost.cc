#include "grammar/grammar_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace coppice {
namespace {

// The larger of two numbers in decimal digits, however long.
std::string_view Larger(std::string_view a, std::string_view b) {
  const auto stripped = [](std::string_view digits) {
    digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
    return digits;
  };
  const std::string_view x = stripped(a), y = stripped(b);
  return std::pair(x.size(), x) < std::pair(y.size(), y) ? b : a;
}

double NumberOf(std::string_view digits) {
  double number = 0;
  for (const char digit : digits) number = number * 10 + (digit - '0');
  return number;
}

constexpr std::string_view kDigits = "0123456789";

// Where a bracket that opens at `begin` is closed: the index behind it. Of `open` brackets none stands in another.
size_t EndOf(std::string_view text, size_t begin, char close) {
  size_t at = begin + 1;
  while (at < text.size() && text[at] != close) at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

// Adds up what a text of groups, alternatives and repeats says. Groups are kept on a list: their depth is the text's.
class Adder {
 public:
  // An atom that may be repeated as a whole.
  void Atom(const GrammarCost& cost) {
    Settle();
    last_ = cost.states;
    Note(cost.largest_repeat);
  }
  void Atom(double states) { Atom({.states = states}); }
  void Open() {
    Settle();
    groups_.push_back(std::exchange(sum_, 0));
  }
  void Close() {
    if (groups_.empty()) return;
    Settle();
    last_ = 1 + sum_;
    sum_ = groups_.back();
    groups_.pop_back();
  }
  void Alternative() {
    Settle();
    ++sum_;
  }
  // {3}, {3,}, {3,9} behind an atom. Returns the index behind it, `begin` where it is something else.
  size_t Repeat(std::string_view text, size_t begin) {
    std::string_view times;
    size_t at = begin + 1;
    for (;;) {
      while (at < text.size() && text[at] == ' ') ++at;
      const size_t end = std::min(text.find_first_not_of(kDigits, at), text.size());
      if (end > at) times = Larger(times, text.substr(at, end - at));
      at = end;
      while (at < text.size() && text[at] == ' ') ++at;
      if (at == text.size() || text[at] != ',') break;
      ++at;
    }
    if (at == text.size() || text[at] != '}' || at == begin + 1) return begin;
    Note(times);
    last_ *= std::max(1.0, NumberOf(times));
    return at + 1;
  }
  GrammarCost Sum() {
    while (!groups_.empty()) Close();
    Settle();
    cost_.states = sum_;
    return cost_;
  }

 private:
  void Settle() { sum_ += std::exchange(last_, 0); }
  void Note(std::string_view repeat) { cost_.largest_repeat = Larger(cost_.largest_repeat, repeat); }

  GrammarCost cost_;
  double sum_ = 0, last_ = 0;  // of the group so far; of the atom that a repeat would repeat
  std::vector<double> groups_;
};

constexpr bool IsNameStart(char c) { return c == '_' || c == '-' || c == '.' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
constexpr bool IsNamePart(char c) { return IsNameStart(c) || (c >= '0' && c <= '9'); }

}  // namespace

GrammarCost RegexCost(std::string_view regex) {
  Adder adder;
  for (size_t at = 0; at < regex.size();) {
    switch (regex[at]) {
      case '(': adder.Open(); break;
      case ')': adder.Close(); break;
      case '|': adder.Alternative(); break;
      case '*':
      case '+':
      case '?': break;  // a loop, or a way around: no state of its own
      case '[':
        adder.Atom(1);
        at = EndOf(regex, at, ']');
        continue;
      case '{':
        if (const size_t end = adder.Repeat(regex, at); end != at) {
          at = end;
          continue;
        }
        adder.Atom(1);
        break;
      case '\\': ++at; [[fallthrough]];
      default: adder.Atom(1);
    }
    ++at;
  }
  return adder.Sum();
}

GrammarCost EbnfCost(std::string_view grammar) {
  Adder adder;
  bool is_regex = false;  // the next string, in Regex("...")
  for (size_t at = 0; at < grammar.size();) {
    const char c = grammar[at];
    if (IsNameStart(c)) {
      const size_t begin = at;
      while (at < grammar.size() && IsNamePart(grammar[at])) ++at;
      is_regex = grammar.substr(begin, at - begin) == "Regex";
      adder.Atom(1);
      continue;
    }
    switch (c) {
      case '(': adder.Open(); break;
      case ')': adder.Close(); break;
      case '|': adder.Alternative(); break;
      case '[':
        adder.Atom(1);
        at = EndOf(grammar, at, ']');
        continue;
      case '#': at = std::min(grammar.find('\n', at), grammar.size()); continue;
      case '"': {
        const size_t end = EndOf(grammar, at, '"');
        const std::string_view text = grammar.substr(at + 1, end - at - 1);
        adder.Atom(is_regex ? RegexCost(text) : GrammarCost{.states = static_cast<double>(text.size())});
        is_regex = false;
        at = end;
        continue;
      }
      case '{':
        if (const size_t end = adder.Repeat(grammar, at); end != at) {
          at = end;
          continue;
        }
        break;
      default: break;
    }
    ++at;
  }
  return adder.Sum();
}

Status CheckGrammarCost(std::string_view what, const GrammarCost& cost) {
  if (NumberOf(cost.largest_repeat) > static_cast<double>(kMaxRepeats))
    return InvalidArgument(fmt::format("the {} repeats a part {} times, expected at most {}: bound the answer by max_tokens", what,
                                       cost.largest_repeat.substr(0, 30), kMaxRepeats));
  if (cost.states <= kMaxGrammarStates) return OkStatus();
  return InvalidArgument(
      fmt::format("the {} has about {:.0f} states when its repeats are written out, expected at most {:.0f}: repeat "
                  "less, above all in what is repeated itself, or bound the answer by max_tokens",
                  what, std::min(cost.states, 1e15), kMaxGrammarStates));
}

}  // namespace coppice
