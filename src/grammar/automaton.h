// Deterministic finite automata over characters: sets of texts that can be intersected, complemented and compared, so that whether
// two patterns have a text in common is known. Layer: grammar.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_set.h"

namespace coppice {

// The number of characters of a set's texts.
struct LengthRange {
  int64_t least = 0;
  std::optional<int64_t> most;  // nothing: there are texts of any length

  friend bool operator==(const LengthRange&, const LengthRange&) = default;
};

// While it lives, automata that this thread makes may take so much work together: about as many steps of some 100 ns. Once it is
// spent, operations that may give nothing give nothing.
class AutomatonBudget {
 public:
  explicit AutomatonBudget(int64_t steps);
  ~AutomatonBudget();
  AutomatonBudget(const AutomatonBudget&) = delete;
  AutomatonBudget& operator=(const AutomatonBudget&) = delete;

  // Whether the innermost budget of this thread, if there is one, has the steps.
  static bool Spend(size_t steps);

 private:
  int64_t left_;
  AutomatonBudget* outer_;
};

// A value type. Minimal, and every state lies on a way from the first one to one that accepts: two automata of equal sets have
// states of equal number. An empty set has no states.
class Automaton {
 public:
  // Of any automaton here; an operation that would need more gives nothing.
  static constexpr size_t kMaxStates = 4000;

  struct Edge {
    char32_t first, last;  // the characters that it takes
    int32_t target;
  };
  struct State {
    std::vector<Edge> edges;  // sorted, none overlaps another
    bool accepts = false;
  };

  Automaton() = default;  // no text
  // Of states that need be neither minimal nor reachable; the first one begins. Edges of a state do not overlap.
  explicit Automaton(std::vector<State> states);

  static Automaton AllTexts();
  static std::optional<Automaton> OfTexts(const std::vector<std::u32string>& texts);
  // Texts of `least` to `most` characters out of `characters`.
  static std::optional<Automaton> Repeat(const CharSet& characters, LengthRange length);

  const std::vector<State>& states() const { return states_; }
  bool empty() const { return states_.empty(); }
  bool Accepts(std::u32string_view text) const;
  // REQUIRES: !empty().
  LengthRange length() const;
  // Where the set is Repeat(characters, length): both of them.
  struct Repetition {
    CharSet characters;
    LengthRange length;
  };
  std::optional<Repetition> AsRepetition() const;

  Automaton Complement() const;
  std::optional<Automaton> Intersect(const Automaton& other) const;

 private:
  std::vector<State> states_;
};

// An automaton as it is built: characters, or nothing, lead from a state to others. Before the first character and behind the last
// one there are further ways.
class AutomatonBuilder {
 public:
  enum class Assertion : uint8_t { kNone, kBegin, kEnd };
  static constexpr size_t kMaxStates = 8000;

  int32_t AddState();  // once it is full, the last one again, and Build gives nothing
  bool full() const { return states_.size() > kMaxStates; }
  void AddEdge(int32_t from, CharSet characters, int32_t to);
  // Taken without a character: always, or only where the text begins or ends.
  void AddJump(int32_t from, int32_t to, Assertion assertion = Assertion::kNone);

  std::optional<Automaton> Build(int32_t begin, int32_t accepting) const;

 private:
  struct Step {
    CharSet characters;
    int32_t target;
  };
  struct Jump {
    int32_t target;
    Assertion assertion;
  };
  struct State {
    std::vector<Step> steps;
    std::vector<Jump> jumps;
  };
  // States of the builder in which a text may be, sorted: twice the state, plus 1 where the text has to end.
  using Set = std::vector<int32_t>;
  Set Closure(Set set, bool at_begin) const;

  std::vector<State> states_;
};

}  // namespace coppice
