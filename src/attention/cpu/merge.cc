#include "attention/cpu/merge.h"

#include <algorithm>
#include <array>

#include "attention/argument_checks.h"
#include "attention/cpu/row_ops.h"
#include "attention/cpu/softmax_state.h"
#include "core/check.h"

namespace coppice::attention::cpu {

void FoldState(const RowState& into, const ConstRowState& from, int32_t head_dim) {
  if (*into.l == 0 && from.l == 0) return;  // both empty
  const float m = std::max(*into.m, from.m);
  const float keep = Rescale(*into.m, m), add = Rescale(from.m, m);
  FoldRow(into.acc, keep, from.acc, add, head_dim);
  *into.l = *into.l * keep + from.l * add;
  *into.m = m;
}

Status MergeStates(Executor& executor, const StateView& into, std::span<const StateView> from, int64_t num_rows, int32_t num_heads,
                   int32_t head_dim, DType dtype, std::span<const uint8_t> mask) {
  COPPICE_RETURN_IF_ERROR(CheckMerge(into, from, num_rows, num_heads, head_dim, mask));
  constexpr int32_t kMaxHeadDim = 256;

  // A normalised pair (out, lse) is the state with acc = out, l = 1, m = lse in base 2.
  const size_t row_bytes = head_dim * SizeOf(dtype);
  executor.ParallelFor(num_rows, [&](int64_t row, int) {
    if (!mask.empty() && mask[row] == 0) return;
    std::array<float, kMaxHeadDim> acc, term;
    for (int64_t i = row * num_heads; i < (row + 1) * num_heads; ++i) {
      std::byte* out = static_cast<std::byte*>(into.out) + i * row_bytes;
      float m = into.lse[i] * kLog2E, l = into.lse[i] == kNegInf ? 0.0f : 1.0f;
      if (l == 0) {  // the empty state, whose out is not read
        std::fill_n(acc.data(), head_dim, 0.0f);
      } else {
        LoadRow(out, head_dim, dtype, acc.data());
      }
      for (const StateView& state : from) {
        if (state.lse[i] == kNegInf) continue;
        LoadRow(static_cast<const std::byte*>(state.out) + i * row_bytes, head_dim, dtype, term.data());
        const ConstRowState other = {.acc = term.data(), .m = state.lse[i] * kLog2E, .l = 1};
        FoldState({.acc = acc.data(), .m = &m, .l = &l}, other, head_dim);
      }
      StoreRow(acc.data(), l > 0 ? 1 / l : 0.0f, head_dim, dtype, out);
      into.lse[i] = NaturalLse(m, l);
    }
  });
  return OkStatus();
}

}  // namespace coppice::attention::cpu
