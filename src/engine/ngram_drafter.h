// Drafts by prompt lookup: what followed the sequence's last tokens where they occurred before, in its prompt, in its own text or
// in that of another sample of its request. Costs no forward pass; helps where the answer repeats its source, and where samples say
// what others have said. Layer: engine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/draft.h"

namespace coppice {

// Where each pair of neighbouring tokens occurred in the texts of a request: its prompt, and what its samples have generated. One
// index for all of them. Thread-compatible.
class BigramIndex {
 public:
  static constexpr int32_t kPrompt = -1;  // in place of a sample
  // Where a pair ends: at kv index `end` of a sample, or of the prompt.
  struct Place {
    int32_t sample = kPrompt, end = 0;
  };

  // The pair (a, b) stands at `place`.
  void Append(int32_t a, int32_t b, const Place& place);
  // Of the prompt, the kv index at which the next pair ends.
  int32_t prompt_end() const { return prompt_end_; }
  // The place that was appended last for (a, b), as a number; -1: none.
  int32_t Last(int32_t a, int32_t b) const;
  // The one before that, of the same pair.
  int32_t Previous(int32_t number) const { return previous_[number]; }
  const Place& At(int32_t number) const { return places_[number]; }

 private:
  int32_t prompt_end_ = 1;
  std::unordered_map<uint64_t, int32_t> last_;
  std::vector<int32_t> previous_;  // by number, like places_
  std::vector<Place> places_;
};

class NgramDrafter final : public Drafter {
 public:
  struct Options {
    int32_t branches = 1;  // continuations tried at the same time, of different places
  };
  explicit NgramDrafter(const Options& options) : options_(options) {}

  // Among the last 32 places at which the last two tokens occurred, those come first whose text before agrees longest (up to 8
  // tokens), then those of the sample itself, then the latest.
  Status Propose(std::span<const DraftRequest> requests) override;
  bool guesses_freely() const override { return true; }

 private:
  struct Place {
    const Sequence* text = nullptr;  // whose
    int32_t matched = 0, next = 0;   // tokens that agree; index of what followed
  };
  void Guess(const DraftRequest& request);

  Options options_;
  std::vector<Place> places_;
  std::vector<int32_t> path_;
};

}  // namespace coppice
