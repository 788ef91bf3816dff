#include "grammar/automaton.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "core/check.h"

namespace coppice {
namespace {

using Edge = Automaton::Edge;
using State = Automaton::State;

constexpr int32_t kNowhere = -1;

thread_local AutomatonBudget* innermost_budget = nullptr;

size_t EdgesOf(const std::vector<State>& states) {
  size_t edges = states.size();
  for (const State& state : states) edges += state.edges.size();
  return edges;
}

// States from which one that accepts can be reached, and that the first one reaches, in the order of their numbers.
std::vector<bool> Useful(const std::vector<State>& states) {
  std::vector<std::vector<int32_t>> sources(states.size());
  std::vector<bool> reached(states.size()), accepting(states.size());
  std::vector<int32_t> work;
  const auto visit = [&work](std::vector<bool>* seen, int32_t state) {
    if ((*seen)[state]) return;
    (*seen)[state] = true;
    work.push_back(state);
  };
  if (!states.empty()) visit(&reached, 0);
  while (!work.empty()) {
    const int32_t state = work.back();
    work.pop_back();
    for (const Edge& edge : states[state].edges) {
      sources[edge.target].push_back(state);
      visit(&reached, edge.target);
    }
  }
  for (size_t i = 0; i < states.size(); ++i) {
    if (reached[i] && states[i].accepts) visit(&accepting, static_cast<int32_t>(i));
  }
  while (!work.empty()) {
    const int32_t state = work.back();
    work.pop_back();
    for (const int32_t source : sources[state]) visit(&accepting, source);
  }
  return accepting;
}

// Edges to one target that touch become one.
void AppendEdge(std::vector<Edge>* edges, const Edge& edge) {
  if (!edges->empty() && edges->back().target == edge.target && edges->back().last + 1 == edge.first) {
    edges->back().last = edge.last;
  } else {
    edges->push_back(edge);
  }
}

// Finds the states that no text distinguishes: a class each. States of one class are looked at again only where one that they lead
// to has moved to another class, and the largest part of a class never moves, so a state is looked at a logarithmic number of times
// for each state that it leads to (Hopcroft 1971, "An n log n algorithm for minimizing states in a finite automaton").
class Partition {
 public:
  explicit Partition(const std::vector<State>& states)
      : states_(states), class_of_(states.size()), is_pending_(states.size()), sources_(states.size()) {
    members_.resize(2);
    std::vector<int32_t> pending;
    for (int32_t i = 0; i < std::ssize(states); ++i) {
      class_of_[i] = states[i].accepts;
      members_[class_of_[i]].push_back(i);
      for (const Edge& edge : states[i].edges) sources_[edge.target].push_back(i);
      pending.push_back(i);
    }
    while (!pending.empty()) pending = Refine(pending);
  }

  int32_t class_of(int32_t state) const { return class_of_[state]; }

 private:
  using Signature = std::vector<std::tuple<char32_t, char32_t, int32_t>>;  // edges, with classes for targets
  Signature SignatureOf(int32_t state) const {
    std::vector<Edge> edges;
    for (const Edge& edge : states_[state].edges) AppendEdge(&edges, {edge.first, edge.last, class_of_[edge.target]});
    Signature signature;
    for (const Edge& edge : edges) signature.emplace_back(edge.first, edge.last, edge.target);
    return signature;
  }

  // Splits the classes of `pending`, whose signatures may have changed; those whose signatures have changed by that.
  std::vector<int32_t> Refine(const std::vector<int32_t>& pending) {
    std::map<int32_t, std::vector<int32_t>> by_class;
    for (const int32_t state : pending) by_class[class_of_[state]].push_back(state);
    for (const int32_t state : pending) is_pending_[state] = true;
    std::vector<int32_t> changed;
    for (const auto& [number, some] : by_class) {
      std::map<Signature, std::vector<int32_t>> parts;
      for (const int32_t state : some) parts[SignatureOf(state)].push_back(state);
      // The others are of one signature.
      const size_t others = members_[number].size() - some.size();
      const auto other = std::ranges::find_if(members_[number], [&](int32_t state) { return !is_pending_[state]; });
      const std::vector<int32_t>* const joined = others > 0 ? &parts[SignatureOf(*other)] : nullptr;
      const auto size_of = [&](const auto& part) { return part.second.size() + (&part.second == joined ? others : 0); };
      const auto largest = std::ranges::max_element(parts, {}, size_of);
      for (auto& [signature, part] : parts) {
        if (&part == &largest->second) continue;
        if (&part == joined)
          std::ranges::copy_if(members_[number], std::back_inserter(part), [&](int32_t state) { return !is_pending_[state]; });
        for (const int32_t state : part) {
          class_of_[state] = static_cast<int32_t>(members_.size());
          changed.insert(changed.end(), sources_[state].begin(), sources_[state].end());
        }
        members_.push_back(std::move(part));
      }
      std::erase_if(members_[number], [&, number = number](int32_t state) { return class_of_[state] != number; });
    }
    for (const int32_t state : pending) is_pending_[state] = false;
    std::ranges::sort(changed);
    changed.erase(std::ranges::unique(changed).begin(), changed.end());
    return changed;
  }

  const std::vector<State>& states_;
  std::vector<int32_t> class_of_;
  std::vector<bool> is_pending_;
  std::vector<std::vector<int32_t>> members_, sources_;
};

std::vector<State> Keep(const std::vector<State>& states, const std::vector<bool>& kept) {
  std::vector<int32_t> numbers(states.size(), kNowhere);
  int32_t next = 0;
  for (size_t i = 0; i < states.size(); ++i) {
    if (kept[i]) numbers[i] = next++;
  }
  std::vector<State> result;
  for (size_t i = 0; i < states.size(); ++i) {
    if (!kept[i]) continue;
    State& state = result.emplace_back();
    state.accepts = states[i].accepts;
    for (const Edge& edge : states[i].edges) {
      if (kept[edge.target]) state.edges.push_back({edge.first, edge.last, numbers[edge.target]});
    }
  }
  return result;
}

// Edges to kNowhere take what no other edge takes, so that each state takes every character.
std::vector<Edge> Completed(const std::vector<Edge>& edges) {
  std::vector<CharRange> taken;
  for (const Edge& edge : edges) taken.push_back({edge.first, edge.last});
  std::vector<Edge> all = edges;
  const CharSet gaps = CharSet(std::move(taken)).Complement();
  for (const CharRange& gap : gaps.ranges()) all.push_back({gap.first, gap.last, kNowhere});
  std::ranges::sort(all, {}, &Edge::first);
  return all;
}

}  // namespace

AutomatonBudget::AutomatonBudget(int64_t steps) : left_(steps), outer_(std::exchange(innermost_budget, this)) {}
AutomatonBudget::~AutomatonBudget() { innermost_budget = outer_; }
bool AutomatonBudget::Spend(size_t steps) {
  if (!innermost_budget) return true;
  int64_t& left = innermost_budget->left_;
  left = std::max<int64_t>(left - static_cast<int64_t>(steps), -1);
  return left >= 0;
}

Automaton::Automaton(std::vector<State> states) {
  constexpr size_t kStepsOfAnEdge = 8;  // to sort it and to compare its state with others
  AutomatonBudget::Spend(kStepsOfAnEdge * EdgesOf(states));
  for (State& state : states) std::ranges::sort(state.edges, {}, &Edge::first);
  const std::vector<bool> useful = Useful(states);
  if (useful.empty() || !useful.front()) return;
  states = Keep(states, useful);
  const Partition partition(states);
  std::map<int32_t, int32_t> numbers;  // of the classes that were met, the first one's is 0
  std::vector<int32_t> met;
  const auto number_of = [&](int32_t state) {
    const auto [found, is_new] = numbers.emplace(partition.class_of(state), static_cast<int32_t>(met.size()));
    if (is_new) met.push_back(state);
    return found->second;
  };
  number_of(0);
  for (size_t i = 0; i < met.size(); ++i) {
    const State& from = states[met[i]];
    State state{.accepts = from.accepts};
    for (const Edge& edge : from.edges) AppendEdge(&state.edges, {edge.first, edge.last, number_of(edge.target)});
    states_.push_back(std::move(state));
  }
}

Automaton Automaton::AllTexts() {
  State state{.accepts = true};
  const CharSet all = CharSet::All();
  for (const CharRange& range : all.ranges()) state.edges.push_back({range.first, range.last, 0});
  return Automaton({std::move(state)});
}

std::optional<Automaton> Automaton::OfTexts(const std::vector<std::u32string>& texts) {
  std::vector<State> states(1);
  for (const std::u32string& text : texts) {
    int32_t state = 0;
    for (const char32_t c : text) {
      std::vector<Edge>& edges = states[state].edges;
      const auto found = std::ranges::find(edges, c, &Edge::first);
      if (found != edges.end()) {
        state = found->target;
        continue;
      }
      if (states.size() == kMaxStates) return std::nullopt;
      state = static_cast<int32_t>(states.size());
      edges.push_back({c, c, state});
      states.emplace_back();  // `edges` is stale
    }
    states[state].accepts = true;
  }
  return Automaton(std::move(states));
}

std::optional<Automaton> Automaton::Repeat(const CharSet& characters, LengthRange length) {
  const int64_t last = length.most.value_or(length.least);
  if (last >= static_cast<int64_t>(kMaxStates)) return std::nullopt;
  std::vector<State> states(static_cast<size_t>(last) + 1);
  for (int64_t i = 0; i <= last; ++i) {
    states[i].accepts = i >= length.least;
    if (i == last && length.most) break;
    const auto target = static_cast<int32_t>(std::min(i + 1, last));
    for (const CharRange& range : characters.ranges()) states[i].edges.push_back({range.first, range.last, target});
  }
  return Automaton(std::move(states));
}

bool Automaton::Accepts(std::u32string_view text) const {
  if (empty()) return false;
  int32_t state = 0;
  for (const char32_t c : text) {
    const std::vector<Edge>& edges = states_[state].edges;
    const auto after = std::ranges::upper_bound(edges, c, {}, &Edge::first);
    if (after == edges.begin() || std::prev(after)->last < c) return false;
    state = std::prev(after)->target;
  }
  return states_[state].accepts;
}

LengthRange Automaton::length() const {
  COPPICE_CHECK(!empty());
  std::vector<int64_t> least(states_.size(), -1), most(states_.size());
  std::vector<int32_t> sources(states_.size());  // edges that were not passed yet
  std::vector<int32_t> nearest = {0}, passed;
  LengthRange range{.least = -1, .most = 0};
  least[0] = 0;
  for (size_t i = 0; i < nearest.size(); ++i) {
    const State& state = states_[nearest[i]];
    if (state.accepts && range.least < 0) range.least = least[nearest[i]];
    for (const Edge& edge : state.edges) {
      ++sources[edge.target];
      if (least[edge.target] >= 0) continue;
      least[edge.target] = least[nearest[i]] + 1;
      nearest.push_back(edge.target);
    }
  }
  // Every state lies on a way to one that accepts, so a circle makes texts of any length. States on one are never passed.
  if (sources[0] == 0) passed.push_back(0);
  for (size_t i = 0; i < passed.size(); ++i) {
    const State& state = states_[passed[i]];
    if (state.accepts) range.most = std::max(*range.most, most[passed[i]]);
    for (const Edge& edge : state.edges) {
      most[edge.target] = std::max(most[edge.target], most[passed[i]] + 1);
      if (--sources[edge.target] == 0) passed.push_back(edge.target);
    }
  }
  if (passed.size() != states_.size()) range.most.reset();
  return range;
}

std::optional<Automaton::Repetition> Automaton::AsRepetition() const {
  if (empty()) return std::nullopt;
  Repetition result;
  bool first = true, accepted = false;
  for (int32_t state = 0, passed = 0;; ++passed) {
    const State& at = states_[state];
    if (at.accepts && !accepted) result.length.least = passed;
    if (accepted && !at.accepts) return std::nullopt;
    accepted = at.accepts;
    if (at.edges.empty()) {
      result.length.most = passed;
      return result;
    }
    std::vector<CharRange> taken;
    for (const Edge& edge : at.edges) {
      if (edge.target != at.edges.front().target) return std::nullopt;
      taken.push_back({edge.first, edge.last});
    }
    CharSet characters(std::move(taken));
    if (!std::exchange(first, false) && characters != result.characters) return std::nullopt;
    result.characters = std::move(characters);
    if (at.edges.front().target == state) return accepted ? std::optional(result) : std::nullopt;
    if (passed > static_cast<int32_t>(states_.size())) return std::nullopt;  // a circle of several states
    state = at.edges.front().target;
  }
}

Automaton Automaton::Complement() const {
  std::vector<State> states = states_;
  const auto other = static_cast<int32_t>(states.size());
  states.emplace_back();
  for (State& state : states) {
    state.edges = Completed(state.edges);
    for (Edge& edge : state.edges) edge.target = edge.target == kNowhere ? other : edge.target;
    state.accepts = !state.accepts;
  }
  return Automaton(std::move(states));
}

std::optional<Automaton> Automaton::Intersect(const Automaton& other) const {
  if (empty() || other.empty()) return Automaton();
  std::map<std::pair<int32_t, int32_t>, int32_t> numbers = {{{0, 0}, 0}};
  std::vector<std::pair<int32_t, int32_t>> pairs = {{0, 0}};
  std::vector<State> states;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto [a, b] = pairs[i];
    State state{.accepts = states_[a].accepts && other.states_[b].accepts};
    const std::vector<Edge>&left = states_[a].edges, &right = other.states_[b].edges;
    for (size_t l = 0, r = 0; l < left.size() && r < right.size();) {
      const char32_t first = std::max(left[l].first, right[r].first), last = std::min(left[l].last, right[r].last);
      if (first <= last) {
        const std::pair target(left[l].target, right[r].target);
        const auto [found, is_new] = numbers.emplace(target, static_cast<int32_t>(pairs.size()));
        if (is_new) pairs.push_back(target);
        state.edges.push_back({first, last, found->second});
      }
      left[l].last < right[r].last ? ++l : ++r;
    }
    // Pairs from which no text is accepted count too: what is left of them is not known before all are there.
    if (pairs.size() > 4 * kMaxStates || !AutomatonBudget::Spend(1 + left.size() + right.size())) return std::nullopt;
    states.push_back(std::move(state));
  }
  Automaton result(std::move(states));
  if (result.states_.size() > kMaxStates) return std::nullopt;
  return result;
}

// ------------------------------------------------------------------------------------------------------------------- building

int32_t AutomatonBuilder::AddState() {
  if (!full()) states_.emplace_back();
  return static_cast<int32_t>(states_.size()) - 1;
}

void AutomatonBuilder::AddEdge(int32_t from, CharSet characters, int32_t to) {
  states_[from].steps.push_back({std::move(characters), to});
}

void AutomatonBuilder::AddJump(int32_t from, int32_t to, Assertion assertion) { states_[from].jumps.push_back({to, assertion}); }

AutomatonBuilder::Set AutomatonBuilder::Closure(Set set, bool at_begin) const {
  std::set<int32_t> reached(set.begin(), set.end());
  while (!set.empty()) {
    const int32_t place = set.back();
    set.pop_back();
    for (const Jump& jump : states_[place / 2].jumps) {
      if (jump.assertion == Assertion::kBegin && !at_begin) continue;
      const int32_t ends = place % 2 | (jump.assertion == Assertion::kEnd ? 1 : 0);
      if (reached.insert(jump.target * 2 + ends).second) set.push_back(jump.target * 2 + ends);
    }
  }
  return {reached.begin(), reached.end()};
}

std::optional<Automaton> AutomatonBuilder::Build(int32_t begin, int32_t accepting) const {
  if (full()) return std::nullopt;
  std::map<Set, int32_t> numbers;
  std::vector<Set> sets;
  const auto number_of = [&](Set set) {
    const auto [found, is_new] = numbers.emplace(std::move(set), static_cast<int32_t>(sets.size()));
    if (is_new) sets.push_back(found->first);
    return found->second;
  };
  number_of(Closure({begin * 2}, /*at_begin=*/true));
  std::vector<Automaton::State> states;
  for (size_t i = 0; i < sets.size(); ++i) {
    const Set here = sets[i];
    size_t steps = here.size();
    Automaton::State state;
    std::map<char32_t, std::vector<std::pair<int32_t, int32_t>>> changes;  // from a character on: targets that come, that go
    for (const int32_t place : here) {
      state.accepts |= place / 2 == accepting;
      if (place % 2 == 1) continue;  // no character may follow
      for (const Step& step : states_[place / 2].steps) {
        for (const CharRange& range : step.characters.ranges()) {
          changes[range.first].emplace_back(step.target * 2, 1);
          changes[range.last + 1].emplace_back(step.target * 2, -1);
        }
      }
    }
    std::map<int32_t, int32_t> targets;  // how many ranges lead there
    for (auto change = changes.begin(); change != changes.end(); ++change) {
      for (const auto& [target, count] : change->second) {
        if ((targets[target] += count) == 0) targets.erase(target);
      }
      if (targets.empty()) continue;
      Set next;
      for (const auto& [target, count] : targets) next.push_back(target);
      next = Closure(std::move(next), /*at_begin=*/false);
      steps += 4 * next.size();
      const int32_t number = number_of(std::move(next));
      AppendEdge(&state.edges, {change->first, std::next(change)->first - 1, number});
    }
    if (sets.size() > 2 * Automaton::kMaxStates || !AutomatonBudget::Spend(steps)) return std::nullopt;
    states.push_back(std::move(state));
  }
  Automaton result(std::move(states));
  if (result.states().size() > Automaton::kMaxStates) return std::nullopt;
  return result;
}

}  // namespace coppice
