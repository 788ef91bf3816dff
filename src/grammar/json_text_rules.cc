#include "grammar/json_text_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace coppice {
namespace {

using Rule = EbnfGrammar::Rule;
using Sequence = EbnfGrammar::Sequence;
using Symbol = EbnfGrammar::Symbol;

// XGrammar computes which tokens a state of a grammar allows when it compiles, some 5 ms a state of a string with 49,152 tokens, or
// while an answer is written. So few characters are counted by states of their own; more by the library's budget of characters,
// which costs no states but some time where a text comes to its end.
constexpr int64_t kMaxCountedCharacters = 32;
// States of an automaton that counts characters as well, for the same reason.
constexpr size_t kMaxCountingStates = 256;

// Behind a string, and behind white space (XGrammar's EBNF).
constexpr std::string_view kBehindString = R"([ \n\r\t]* [,}\]:])", kBehindSpace = R"(["\-0-9:,{}\[\]tfn])", kQuote = R"("\"")";

const CharSet& Digits() {
  static const CharSet set({{'0', '9'}});
  return set;
}
// Characters that a string has as they are.
const CharSet& Raw() {
  static const CharSet set = (CharSet({{0, 0x1F}}) | CharSet::OfAscii("\"\\")).Complement();
  return set;
}

constexpr std::pair<char32_t, char> kShortEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                                       {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};

}  // namespace

JsonTextRules::RuleId JsonTextRules::WhiteSpace() {
  if (white_space_) return *white_space_;
  static const CharSet space = CharSet::OfAscii(" \n\r\t");
  RuleId next = grammar_.AddRule({.alternatives = {{}, {space}}, .followed_by = kBehindSpace});
  for (int i = 1; i < kMaxWhiteSpace; ++i)
    next = grammar_.AddRule({.alternatives = {{}, {space, next}}, .followed_by = kBehindSpace});
  white_space_ = next;
  return next;
}

JsonTextRules::RuleId JsonTextRules::Number(bool whole) {
  std::optional<RuleId>& made = numbers_[whole];
  if (made) return *made;
  static const CharSet first({{'1', '9'}});
  const Symbol any = Symbol(Digits()).Repeated(0);
  const RuleId minus = grammar_.AddRule({.alternatives = {{}, {"-"}}});
  const RuleId integer = grammar_.AddRule({.alternatives = {{"0"}, {minus, first, any}}});
  if (whole) {
    made = integer;
    return integer;
  }
  const RuleId fraction = grammar_.AddRule({.alternatives = {{}, {".", Digits(), any}}});
  const RuleId sign = grammar_.AddRule({.alternatives = {{}, {CharSet::OfAscii("+-")}}});
  // No double is so large that this would overflow it.
  const RuleId exponent =
      grammar_.AddRule({.alternatives = {{Digits()}, {Digits(), Digits()}, {CharSet::OfAscii("12"), Digits(), Digits()}}});
  made = grammar_.AddRule({.alternatives = {{minus, "0", fraction},
                                            {minus, first, any, fraction},
                                            {minus, first, fraction, CharSet::OfAscii("eE"), sign, exponent}}});
  return *made;
}

// ------------------------------------------------------------------------------------------------------------------- characters

JsonTextRules::RuleId JsonTextRules::Escape() {
  if (escape_) return *escape_;
  static const CharSet hex({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  const CharSet d = CharSet::OfAscii("Dd"), high = CharSet::OfAscii("89ABab"), low = CharSet::OfAscii("CDEFcdef");
  // Surrogates come in pairs.
  escape_ = grammar_.AddRule({.alternatives = {{CharSet::OfAscii("\"\\/bfnrt")},
                                               {"u", hex & d.Complement(), hex, hex, hex},
                                               {"u", d, CharSet({{'0', '7'}}), hex, hex},
                                               {"u", d, high, hex, hex, "\\u", d, low, hex, hex}}});
  return *escape_;
}

void JsonTextRules::AppendCharacter(const CharSet& characters, Symbol then, Rule* rule) {
  const auto append = [&](Sequence sequence) {
    sequence.push_back(then);
    rule->alternatives.push_back(std::move(sequence));
  };
  if (const CharSet raw = characters & Raw(); !raw.empty()) append({raw});
  if (characters == CharSet::All()) return append({"\\", Escape()});
  std::string letters;
  CharSet others = characters & CharSet({{0, 0x1F}});
  for (const auto& [c, letter] : kShortEscapes) {
    if (!characters.Contains(c)) continue;
    letters += letter;
    others = others & CharSet::Of(c).Complement();
  }
  if (!letters.empty()) append({"\\", CharSet::OfAscii(letters)});
  for (char32_t tens = 0; tens <= 1; ++tens) {
    std::string digits;
    for (char32_t ones = 0; ones < 16; ++ones) {
      if (!others.Contains(tens * 16 + ones)) continue;
      digits += fmt::format("{:x}", static_cast<uint32_t>(ones));
      if (ones >= 10) digits += fmt::format("{:X}", static_cast<uint32_t>(ones));
    }
    if (!digits.empty()) append({fmt::format("\\u00{}", static_cast<uint32_t>(tens)), CharSet::OfAscii(digits)});
  }
}

// ------------------------------------------------------------------------------------------------------------------- strings

namespace {

std::vector<std::pair<char32_t, char32_t>> KeyOf(const CharSet& characters) {
  std::vector<std::pair<char32_t, char32_t>> key;
  for (const CharRange& range : characters.ranges()) key.emplace_back(range.first, range.last);
  return key;
}

}  // namespace

JsonTextRules::RuleId JsonTextRules::Quoted(RuleId inside) { return grammar_.AddRule({.alternatives = {{"\"", inside}}}); }

JsonTextRules::RuleId JsonTextRules::Unbounded(const CharSet& characters, End end) {
  const auto [made, is_new] = made_.try_emplace({KeyOf(characters), static_cast<int>(end), -1, -1});
  if (!is_new) return made->second;
  const RuleId id = grammar_.AddRule();
  Rule rule{.followed_by = end == End::kQuote ? kBehindString : kQuote};
  rule.alternatives.push_back(end == End::kQuote ? Sequence{"\""} : Sequence{});
  AppendCharacter(characters, id, &rule);
  grammar_.Define(id, std::move(rule));
  return made_[made->first] = id;
}

JsonTextRules::RuleId JsonTextRules::Counted(const CharSet& characters, int64_t least, int64_t count) {
  // Tails without a lower bound are shared by all strings of these characters.
  RuleId next = -1;
  for (int64_t left = 0; left <= count; ++left) {
    const int64_t required = std::max<int64_t>(0, least - (count - left));
    const auto [made, is_new] = made_.try_emplace({KeyOf(characters), 2, required, left});
    if (is_new) {
      Rule rule{.followed_by = kBehindString};
      if (required == 0) rule.alternatives.push_back({"\""});
      if (left > 0) AppendCharacter(characters, next, &rule);
      made->second = grammar_.AddRule(std::move(rule));
    }
    next = made->second;
  }
  return next;
}

JsonTextRules::RuleId JsonTextRules::Budgeted(const CharSet& characters, int64_t most) {
  Rule rule{.followed_by = kQuote, .max_characters = most};
  rule.alternatives.push_back({});
  AppendCharacter(characters, Unbounded(characters, End::kNothing), &rule);
  return grammar_.AddRule({.alternatives = {{grammar_.AddRule(std::move(rule)), "\""}}, .followed_by = kBehindString});
}

JsonTextRules::RuleId JsonTextRules::Required(const CharSet& characters, int64_t count, RuleId then) {
  if (count > kMaxCountedCharacters) {
    // Of what is repeated the library writes out some hundred, and computes which tokens each of these characters allows, but
    // nothing for a rule: so rules of a few characters are repeated. They have no escapes, which come only behind them.
    constexpr int64_t kBlock = 20;
    if (const CharSet raw = characters & Raw(); !raw.empty()) {
      const RuleId block = grammar_.AddRule({.alternatives = {{Symbol(raw).Repeated(kBlock, kBlock)}}});
      const int64_t blocks = count / kBlock, rest = count % kBlock;
      return grammar_.AddRule({.alternatives = {{Symbol(block).Repeated(blocks, blocks), Symbol(raw).Repeated(rest, rest), then}},
                               .followed_by = kBehindString});
    }
    Rule one;
    AppendCharacter(characters, "", &one);
    return grammar_.AddRule({.alternatives = {{Symbol(grammar_.AddRule(std::move(one))).Repeated(count, count), then}}});
  }
  for (int64_t i = 0; i < count; ++i) {
    Rule rule{.followed_by = kBehindString};
    AppendCharacter(characters, then, &rule);
    then = grammar_.AddRule(std::move(rule));
  }
  return then;
}

JsonTextRules::RuleId JsonTextRules::String(const CharSet& characters, const LengthRange& length) {
  const auto [made, is_new] = made_.try_emplace({KeyOf(characters), 3, length.least, length.most.value_or(-1)});
  if (!is_new) return made->second;
  const Key key = made->first;
  RuleId inside = -1;
  if (!length.most) {
    inside = Required(characters, length.least, Unbounded(characters, End::kQuote));
  } else if (*length.most <= kMaxCountedCharacters) {
    inside = Counted(characters, length.least, *length.most);
  } else {
    const int64_t rest = *length.most - length.least;
    inside = Required(characters, length.least,
                      rest <= kMaxCountedCharacters ? Counted(characters, 0, rest) : Budgeted(characters, rest));
  }
  return made_[key] = Quoted(inside);
}

namespace {

// The same for equal automata alone.
std::vector<uint32_t> KeyOf(const Automaton& texts) {
  std::vector<uint32_t> key;
  for (const Automaton::State& state : texts.states()) {
    key.insert(key.end(), {state.accepts, static_cast<uint32_t>(state.edges.size())});
    for (const Automaton::Edge& edge : state.edges)
      key.insert(key.end(), {edge.first, edge.last, static_cast<uint32_t>(edge.target)});
  }
  return key;
}

// The texts of an automaton, which has some, in which no more than `most` characters in turn end in a state that does not accept.
std::optional<Automaton> WithShortDetours(const Automaton& texts, int32_t most) {
  std::map<std::pair<int32_t, int32_t>, int32_t> numbers = {{{0, 0}, 0}};
  std::vector<std::pair<int32_t, int32_t>> places = {{0, 0}};  // a state, and how many before it did not accept
  std::vector<Automaton::State> states;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto [from, detour] = places[i];
    Automaton::State state{.accepts = texts.states()[from].accepts};
    for (const Automaton::Edge& edge : texts.states()[from].edges) {
      const std::pair to(edge.target, texts.states()[edge.target].accepts ? 0 : detour + 1);
      if (to.second > most) continue;
      const auto [found, is_new] = numbers.emplace(to, static_cast<int32_t>(places.size()));
      if (is_new) places.push_back(to);
      state.edges.push_back({edge.first, edge.last, found->second});
    }
    states.push_back(std::move(state));
    if (places.size() > Automaton::kMaxStates) return std::nullopt;
  }
  return Automaton(std::move(states));
}

bool IsWithin(const LengthRange& inner, const LengthRange& outer) {
  return inner.least >= outer.least && (!outer.most || (inner.most && *inner.most <= *outer.most));
}

}  // namespace

Result<JsonTextRules::RuleId> JsonTextRules::String(const Automaton& texts, const LengthRange& length) {
  if (texts.empty()) return grammar_.AddRule();
  if (const std::optional<Automaton::Repetition> repetition = texts.AsRepetition()) {
    LengthRange both = length;
    both.least = std::max(both.least, repetition->length.least);
    if (repetition->length.most) both.most = std::min(both.most.value_or(kMaxSchemaCount), *repetition->length.most);
    if (both.most && *both.most < both.least) return grammar_.AddRule();
    return String(repetition->characters, both);
  }
  if (IsWithin(texts.length(), length)) return Quoted(StatesOf(texts, End::kQuote));
  const auto counted = [&](const LengthRange& counts) -> std::optional<Automaton> {
    const std::optional<Automaton> any = Automaton::Repeat(CharSet::All(), counts);
    const std::optional<Automaton> both = any ? texts.Intersect(*any) : std::nullopt;
    return both && both->states().size() <= kMaxCountingStates ? both : std::nullopt;
  };
  if (const std::optional<Automaton> both = counted(length)) {
    if (both->empty()) return grammar_.AddRule();
    return Quoted(StatesOf(*both, End::kQuote));
  }
  // A budget ends a text where it can end, so it needs a place where it can soon.
  constexpr int32_t kMaxDetour = 32;
  const std::optional<Automaton> least = texts.length().least >= length.least ? texts : counted({.least = length.least});
  if (least && least->empty()) return grammar_.AddRule();
  const std::optional<Automaton> ending = least ? WithShortDetours(*least, kMaxDetour) : std::nullopt;
  if (!ending || ending->empty() || !length.most || *length.most < 2 * kMaxDetour + ending->length().least)
    return InvalidArgument(
        "it counts the characters of texts of this pattern or format, and there are too many: let the pattern count them, or leave "
        "minLength or maxLength out");
  const RuleId inside = StatesOf(*ending, End::kNothing);
  const RuleId bounded =
      grammar_.AddRule({.alternatives = {{inside}}, .followed_by = kQuote, .max_characters = *length.most - kMaxDetour - 1});
  return Quoted(grammar_.AddRule({.alternatives = {{bounded, "\""}}, .followed_by = kBehindString}));
}

JsonTextRules::RuleId JsonTextRules::StatesOf(const Automaton& texts, End end) {
  const auto [made, is_new] = made_states_.try_emplace({KeyOf(texts), end}, RuleId{-1});
  if (!is_new) return made->second;
  std::vector<RuleId> ids;
  for (size_t i = 0; i < texts.states().size(); ++i) ids.push_back(grammar_.AddRule());
  for (size_t i = 0; i < ids.size(); ++i) {
    const Automaton::State& state = texts.states()[i];
    Rule rule;
    if (end != End::kPlain) rule.followed_by = end == End::kQuote ? kBehindString : kQuote;
    if (state.accepts) rule.alternatives.push_back(end == End::kQuote ? Sequence{"\""} : Sequence{});
    std::map<int32_t, std::vector<CharRange>> targets;
    for (const Automaton::Edge& edge : state.edges) targets[edge.target].push_back({edge.first, edge.last});
    for (auto& [target, ranges] : targets) {
      CharSet characters(std::move(ranges));
      if (end == End::kPlain) {
        rule.alternatives.push_back({std::move(characters), ids[target]});
      } else {
        AppendCharacter(characters, ids[target], &rule);
      }
    }
    grammar_.Define(ids[i], std::move(rule));
  }
  return made->second = ids.front();
}

}  // namespace coppice
