// The parts of the engine that requests of each name (Request::share_of) hold, and which name is next to get more. While several
// names want places among the running samples, each has an equal part of them, and none loses what no other wants (max-min
// fairness). Counts; decides nothing about requests. Layer: engine.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "engine/request_state.h"

namespace coppice {

struct FairShare {
  int32_t running = 0;  // places that it holds
  // The highest priority of its prompts under way.
  std::optional<int32_t> prompt_priority;
  Sequence* next = nullptr;   // first in the queue
  int64_t prompt_tokens = 0;  // in the step that is scheduled
};

// Thread-compatible.
class FairShares {
 public:
  // Stays where it is while a sequence of that name waits or runs.
  FairShare* Of(const std::string& name) { return &shares_[name]; }
  // Counts anew, if there is more than one name, and forgets those without sequences. `free`: free places.
  void Count(std::span<Sequence* const> running, const std::deque<Sequence*>& waiting, int32_t free);
  // Whether more than one name has sequences. The rest REQUIRES it, and is as of the last Count and what was noted since.
  bool contended() const { return contended_; }
  // Places of each name, while all of them want that many.
  int32_t part() const { return part_; }
  // Of the names below their part that have a sequence in the queue, the one that comes next: the highest priority, then the fewest
  // places. Null: none.
  const FairShare* neediest() const { return neediest_; }
  // Whether a sequence may take a place: not where its name has its part and another one below its own wants it.
  bool MayTake(const Sequence& sequence) const;
  // Gives each name that has prompts its part of the step's `tokens` of them; `places_are_free`: those in the queue count too.
  void DividePrompts(int32_t tokens, bool places_are_free);
  // How many tokens of its prompt a sequence may have in the step, as far as names go. One whose priority is above that of all
  // other names' prompts may have them all.
  int32_t PromptTokensFor(const Sequence& sequence) const;
  // A sequence got a place.
  static void NoteAdmitted(const Sequence& sequence) { ++sequence.request->share->running; }
  void Clear() { *this = FairShares(); }

 private:
  std::map<std::string, FairShare> shares_;
  bool contended_ = false;
  int32_t part_ = 0;
  const FairShare* neediest_ = nullptr;
  int32_t part_of_prompts_ = 0;               // tokens
  const FairShare* first_prompts_ = nullptr;  // of the one name that has the highest priority, if there is one
  int32_t first_priority_ = 0;
  // Of names below their part that want places, now or when their prompts are computed, the highest priority of a request.
  std::optional<int32_t> below_priority_;
};

}  // namespace coppice
