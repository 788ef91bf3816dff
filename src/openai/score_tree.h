// Many sequences whose tokens are to be scored, as a tree: what they have in common is computed and scored once. A part of the tree
// is a prompt for the engine: a path from the root, and the tokens to be scored after some of its tokens.
// Layer: openai. Branches over one prefix, read together: Hydragen section 3, Bifurcated Attention section 4.
#pragma once

#include <cstdint>
#include <vector>

#include "coppice/engine/engine.h"

namespace coppice::openai {

struct ScoredSequence {
  std::vector<int32_t> tokens;
  int32_t begin = 1;  // tokens from here on are scored; at least 1, below the number of tokens
};

struct ScoreTree {
  struct Part {
    std::vector<int32_t> prompt_ids;
    std::vector<PromptScore> scores;  // by position
    std::vector<int32_t> ids;         // of each of them
  };
  // The first part goes to the engine alone; when it is computed, all others branch off from it, or from each other.
  std::vector<Part> parts;
  int32_t num_scores = 0;
  std::vector<std::vector<int32_t>> score_ids;  // by sequence and scored token: its score
};

// O(tokens x log sequences).
ScoreTree MakeScoreTree(const std::vector<ScoredSequence>& sequences);

}  // namespace coppice::openai
