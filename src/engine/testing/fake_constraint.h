// Constraints for tests: what may come next follows from the last token alone, so that a test can say it again. Layer: engine,
// tests only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "coppice/engine/token_constraint.h"
#include "core/check.h"

namespace coppice {

// After a token t (-1: none yet) those may come whose number has the parity of t + 1, but not those from `limit` on. The output may
// end after every token that `ends_after` divides; after `last` nothing may come.
class ParityConstraint final : public TokenConstraint {
 public:
  ParityConstraint(int32_t vocab_size, int32_t limit, int32_t ends_after = 0, int32_t last = -1)
      : vocab_size_(vocab_size), limit_(limit), ends_after_(ends_after), last_(last) {}

  bool Allows(int32_t before, int32_t token) const {
    return (before < 0 || before != last_) && token < limit_ && (token & 1) == ((before + 1) & 1);
  }
  bool MayEnd(int32_t before) const { return before >= 0 && ends_after_ > 0 && before % ends_after_ == 0; }
  int32_t vocab_size() const override { return vocab_size_; }
  std::unique_ptr<ConstraintState> Begin() const override { return std::make_unique<State>(*this); }

 private:
  class State final : public ConstraintState {
   public:
    explicit State(const ParityConstraint& constraint) : constraint_(constraint) {}
    Result<bool> FillMask(std::span<uint32_t> mask) override {
      std::ranges::fill(mask, 0u);
      for (int32_t t = 0; t < constraint_.vocab_size_; ++t) {
        if (constraint_.Allows(before_, t)) mask[t / 32] |= uint32_t{1} << t % 32;
      }
      return constraint_.MayEnd(before_);
    }
    std::unique_ptr<ConstraintState> Clone() const override { return std::make_unique<State>(*this); }
    Status Accept(int32_t token) override {
      if (!constraint_.Allows(before_, token)) return Internal("the constraint does not allow token " + std::to_string(token));
      before_ = token;
      return OkStatus();
    }

   private:
    const ParityConstraint& constraint_;
    int32_t before_ = -1;
  };

  int32_t vocab_size_, limit_, ends_after_, last_;
};

}  // namespace coppice
