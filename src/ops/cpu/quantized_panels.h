// Weights that stay in the blocks of their file, in strips that products read (quantized_format.h). The panels of PackedWeight are
// two strips each.
// Layer: ops, private.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "coppice/core/executor.h"
#include "ops/cpu/quantized_format.h"
#include "ops/cpu/weight_memory.h"
#include "ops/ops.h"

namespace coppice::ops {

class QuantizedPanels {
 public:
  struct Strip {
    BlockFormat format = BlockFormat::kQ8_0;
    int64_t offset = 0;
  };

  // Whether parts of these formats and sizes, one behind the other or each in panels of its own, lie in strips of one format each.
  static bool CanPack(int64_t in_features, std::span<const PartShape> parts, PartOrder order);
  // column(part, row): the packed column of a part's row. REQUIRES: CanPack.
  static Result<QuantizedPanels> Create(Executor& executor, WeightMemory& memory, int64_t in_features,
                                        std::span<const LinearPart> parts, int64_t num_columns,
                                        const std::function<int64_t(size_t part, int64_t row)>& column);

  std::span<const Strip> strips() const { return strips_; }
  BlockFormat format(int64_t strip) const { return strips_[strip].format; }
  const std::byte* data(int64_t strip) const { return data_.get() + strips_[strip].offset; }
  int64_t bytes(int64_t strip) const { return Layout(strips_[strip].format).StripBytes(in_features_); }
  // The values of a packed column, [in_features].
  void Unpack(int64_t column, float* out) const;

 private:
  int64_t in_features_ = 0;
  std::vector<Strip> strips_;
  std::shared_ptr<std::byte> data_;
};

}  // namespace coppice::ops
