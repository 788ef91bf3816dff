// Constrained output: which tokens may come next in a sample, given those before. A grammar, a JSON schema, a list of choices: the
// engine asks for a mask before each token and says which token came. Layer: public API of coppice::engine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "coppice/core/status.h"

namespace coppice {

// One sample on its way. Called by one thread at a time, different samples' states by several.
class ConstraintState {
 public:
  virtual ~ConstraintState() = default;

  // Sets bit t % 32 of mask[t / 32] for each token t that may come next as part of the output, and clears all others. `mask` has
  // ceil(vocab_size / 32) words. Returns whether the output may also end here. The sample ends with an error, or where the mask has
  // no bit and the output may not end.
  virtual Result<bool> FillMask(std::span<uint32_t> mask) = 0;
  // `token`, one that the last mask allowed, came next. On an error the sample ends with it.
  virtual Status Accept(int32_t token) = 0;
};

// Immutable: one serves any number of requests and threads.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // A sample that has no token yet. Called by Engine::Submit, once for each sample; throws std::bad_alloc at most.
  virtual std::unique_ptr<ConstraintState> Begin() const = 0;
  // Of the model that it was made for: token ids are 0..vocab_size - 1. Submit refuses it for a model of another size.
  virtual int32_t vocab_size() const = 0;
};

}  // namespace coppice
