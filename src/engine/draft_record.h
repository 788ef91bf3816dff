// The gain of drafts for one sequence: the tokens of its steps with drafts, or, where steps have none, of those that it would have
// had, since a guess that costs nothing can be held against the text as it comes. Drafts that are computed change when a text is
// known, not what it is, so both count the same steps. Layer: engine.
#pragma once

#include <cstdint>

#include "engine/draft.h"

namespace coppice {

// Thread-compatible.
class DraftRecord {
 public:
  // Of a step with drafts, of late: each step counts an eighth of all before it. 1 before the first.
  double tokens_per_step() const { return tokens_per_step_; }

  // A guess is made, the text being `length` tokens long. `computed`: the next step has it.
  void Begin(int32_t length, bool computed);
  // The text is `length` tokens long now and ends with `last`; to be called at each length. Whether the last guess, `draft`, is
  // over: then its step is counted, and the next guess is due.
  bool Follow(const Draft& draft, int32_t length, int32_t last);

 private:
  void Count(int32_t tokens) { tokens_per_step_ += (tokens - tokens_per_step_) / 8; }

  double tokens_per_step_ = 1;
  int32_t length_ = 0;  // 0: no guess was made
  int32_t accepted_ = 0, node_ = Draft::kRoot;
  bool computed_ = false;
};

}  // namespace coppice
