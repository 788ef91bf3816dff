// Folds of partial attention states: of a plan's contributions, and of caller-held (out, lse) pairs.
// Layer: attention/cpu. Cascade Inference, "Attention states": the fold is associative and commutative up to rounding.
#pragma once

#include <cstdint>
#include <span>

#include "coppice/attention/attention.h"

namespace coppice::attention::cpu {

// Context::MergeStates on the CPU; arguments are checked here.
Status MergeStates(Executor& executor, const StateView& into, std::span<const StateView> from, int64_t num_rows, int32_t num_heads,
                   int32_t head_dim, DType dtype, std::span<const uint8_t> mask);

}  // namespace coppice::attention::cpu
