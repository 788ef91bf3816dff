// Constrained output: which tokens may come next in a sample, given those before. A grammar, a JSON schema, a list of choices: the
// engine asks for a mask before each token and says which token came. Layer: public API of coppice::engine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "coppice/core/status.h"

namespace coppice {

// Where samples of a request stand that have the same output so far. Called by one thread at a time, different states by several.
class ConstraintState {
 public:
  virtual ~ConstraintState() = default;

  // Sets bit t % 32 of mask[t / 32] for each token t that may come next as part of the output, and clears all others. `mask` has
  // ceil(vocab_size / 32) words. Returns whether the output may also end here. A sample ends where the mask has no bit and the
  // output may not end. On an error the samples of this state end with it; on RESOURCE_EXHAUSTED, which says that masks of this
  // constraint take too long or too much memory, so do all samples of the constraint whose requests have the same
  // Request::share_of and that would need one in this step, each with INVALID_ARGUMENT and the message.
  virtual Result<bool> FillMask(std::span<uint32_t> mask) = 0;
  // `token` came next, one that a mask allowed here: the last one, or, where outputs are replayed, that of another state. Errors
  // are those of FillMask.
  virtual Status Accept(int32_t token) = 0;
  // Another state that stands where this one does: samples whose outputs differ from here on have one each. Throws std::bad_alloc
  // at most.
  virtual std::unique_ptr<ConstraintState> Clone() const = 0;
};

// Immutable: one serves any number of requests and threads.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Where samples have no token yet. Called by Engine::Submit, once for each request; throws std::bad_alloc at most.
  virtual std::unique_ptr<ConstraintState> Begin() const = 0;
  // Of the model that it was made for: token ids are 0..vocab_size - 1. Submit refuses it for a model of another size.
  virtual int32_t vocab_size() const = 0;
};

}  // namespace coppice
