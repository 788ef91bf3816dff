// Speculative decoding's guesses: tokens that may follow a sequence, verified by the step's forward pass as extra rows of its
// branch. A Drafter (ngram_drafter.h, model_drafter.h) guesses; the sampler verifies, row by row; engine.cc takes
// over what the model agrees with. Layer: engine. Leviathan et al. 2023; Chen et al. 2023; draft trees: SpecInfer (Miao et al.
// 2023); n_g rows of one branch: Bifurcated Attention, appendix G. docs/engine.md, "Speculative decoding".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coppice/core/status.h"

namespace coppice {

struct Sequence;

// A tree of tokens below the last known one; parents come before children, children of one parent differ. Tokens 0, 1, 2, ... up to
// the first whose parent is not the one before it form a linear draft, the likeliest guess.
struct Draft {
  static constexpr int32_t kRoot = -1;       // parent: the last known token
  static constexpr int32_t kMaxTokens = 63;  // with the last known token, the 64 queries of a tree mask

  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;  // index into tokens, or kRoot
  // Empty: each token is what its drafter says, whatever the model's distribution (a point mass). Else a linear draft, whose token
  // i was drawn from row proposals[i] of what the two runners have in common (Drafting::proposal).
  std::vector<int32_t> proposals;

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  bool empty() const { return tokens.empty(); }
  void Clear() {
    tokens.clear();
    parents.clear();
    proposals.clear();
  }
  // The child of `parent` that is `token`, added if there is none.
  int32_t Extend(int32_t parent, int32_t token);
  // -1 if there is none among the first `count` tokens.
  int32_t ChildOf(int32_t parent, int32_t token, int32_t count) const;
  // Tokens from the root to token i, itself included.
  int32_t DepthOf(int32_t i) const;
  // Length of the linear draft that the first tokens form.
  int32_t LinearLength() const;
  // The tokens from the root to token i.
  void Path(int32_t i, std::vector<int32_t>* path) const;
};

// A sequence's request for guesses.
struct DraftRequest {
  Sequence* sequence = nullptr;  // decodes: its last known token is not computed yet
  int32_t max_depth = 0;         // tokens along a path at most, at least 1
};

// Thread-compatible.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Fills sequence->draft, cleared by the caller, of each request, as far as it has a guess. Called once before each step with all
  // sequences that decode in it; of others it may forget what it knows.
  virtual Status Propose(std::span<const DraftRequest> requests) = 0;
  // Whether guesses cost next to nothing, so that they may be asked for where no step computes them. Propose does not fail then.
  virtual bool guesses_freely() const { return false; }
  // Forgets all sequences, also where a call that threw has left things half done.
  virtual void Clear() {}
  // As Runner::Sleep, with weights that are kept, and Wake. REQUIRES: Clear comes first.
  virtual Status Sleep() { return OkStatus(); }
  virtual Status Wake() { return OkStatus(); }
  // KV that drafting itself has read so far, all layers.
  virtual int64_t kv_bytes_read() const { return 0; }
};

}  // namespace coppice
