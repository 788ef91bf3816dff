// Log-probabilities of prompts that are kept with cached tokens: which of them a request finds, and what a step adds.
// Layer: engine. docs/engine.md, "Scores that stay".
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/token_score.h"
#include "engine/request_state.h"

namespace coppice {

// Thread-compatible.
class KeptScores {
 public:
  // Takes over what is kept of the scores that a sequence's request wants, and says from which kv index on the forward pass of its
  // tokens is needed for the others; INT32_MAX: for none. Nothing: a branch computes tokens whose scores are wanted, so that they
  // may be there when it has. REQUIRES: the sequence computes the prompt.
  std::optional<int32_t> Find(Sequence* sequence, const KvCache& cache);
  // Keeps `count` scores from `first` on, which were computed, with the sequence's tokens.
  void Keep(const Sequence& sequence, int32_t first, int32_t count, KvCache* cache);

 private:
  std::vector<TokenScore> scores_;  // scratch
};

}  // namespace coppice
