// Drafts by prompt lookup: what followed the sequence's last tokens where they occurred before, in its prompt or in its own text.
// Costs no forward pass; helps where the answer repeats its source. Layer: engine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/draft.h"

namespace coppice {

// Where each pair of neighbouring tokens of a stretch of text occurred. Thread-compatible.
class BigramIndex {
 public:
  // The stretch begins with the pair whose second token is at index `first`.
  explicit BigramIndex(int32_t first) : first_(first) {}

  // The pair that ends at end() is (a, b).
  void Append(int32_t a, int32_t b);
  // Where the pair at the end of the next Append will end.
  int32_t end() const { return first_ + static_cast<int32_t>(previous_.size()); }
  // The last index at which (a, b) ends; -1: nowhere.
  int32_t Last(int32_t a, int32_t b) const;
  // The one before that, for the same pair.
  int32_t Previous(int32_t index) const { return previous_[index - first_]; }

 private:
  int32_t first_;
  std::unordered_map<uint64_t, int32_t> last_;
  std::vector<int32_t> previous_;  // by index - first_
};

class NgramDrafter final : public Drafter {
 public:
  struct Options {
    int32_t branches = 1;  // continuations tried at the same time, of different places
  };
  explicit NgramDrafter(const Options& options) : options_(options) {}

  // Among the last 32 places at which the last two tokens occurred, those come first whose text before agrees longest (up to 8
  // tokens), then the latest.
  Status Propose(std::span<const DraftRequest> requests) override;
  bool guesses_freely() const override { return true; }

 private:
  struct Place {
    int32_t matched = 0, next = 0;  // tokens that agree; index of what followed
  };
  void Guess(const DraftRequest& request);

  Options options_;
  std::vector<Place> places_;
  std::vector<int32_t> path_;
};

}  // namespace coppice
