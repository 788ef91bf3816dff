#include "ops/cpu/quantized_panels.h"

#include <algorithm>

#include "core/check.h"
#include "core/math.h"
#include "ops/cpu/quantized_strip.h"

namespace coppice::ops {

namespace {

BlockFormat FormatOf(const LinearPart& part) { return std::get<BlocksFormat>(part.format).format; }

}  // namespace

bool QuantizedPanels::CanPack(int64_t in_features, std::span<const PartShape> parts, PartOrder order) {
  int64_t column = 0;
  const BlocksFormat* before = nullptr;
  for (const PartShape& part : parts) {
    const auto* blocks = std::get_if<BlocksFormat>(&part.format);
    if (blocks == nullptr || in_features % Traits(blocks->format).elements != 0) return false;
    const bool shares_strip = before != nullptr && order == PartOrder::kConcatenated && column % kQuantStripCols != 0;
    if (shares_strip && blocks->format != before->format) return false;
    column += part.rows;
    before = blocks;
  }
  return true;
}

Result<QuantizedPanels> QuantizedPanels::Create(Executor& executor, WeightMemory& memory, int64_t in_features,
                                                std::span<const LinearPart> parts, int64_t num_columns,
                                                const std::function<int64_t(size_t, int64_t)>& column) {
  QuantizedPanels panels;
  panels.in_features_ = in_features;
  // Strips without a row have the first part's format; their zeros are zero in all.
  panels.strips_.assign(num_columns / kQuantStripCols, {.format = FormatOf(parts.front())});
  for (size_t p = 0; p < parts.size(); ++p) {
    for (int64_t row = 0; row < parts[p].rows; ++row) {
      panels.strips_[column(p, row) / kQuantStripCols].format = FormatOf(parts[p]);
    }
  }
  int64_t bytes = 0;
  for (Strip& strip : panels.strips_) {
    strip.offset = bytes;
    bytes += Layout(strip.format).StripBytes(in_features);
  }
  COPPICE_ASSIGN_OR_RETURN(panels.data_, memory.Allocate(bytes));
  for (size_t p = 0; p < parts.size(); ++p) {
    const BlockFormat format = FormatOf(parts[p]);
    const auto* blocks = static_cast<const std::byte*>(parts[p].weight);
    const int64_t row_bytes = in_features / Traits(format).elements * Traits(format).bytes;
    // Tasks of whole strips: columns of one share words.
    const int64_t lead = (kQuantStripCols - column(p, 0) % kQuantStripCols) % kQuantStripCols;  // rows before the first boundary
    const auto begin = [&](int64_t task) { return task == 0 ? 0 : std::min(parts[p].rows, lead + (task - 1) * kQuantStripCols); };
    executor.ParallelFor(1 + CeilDiv(std::max<int64_t>(0, parts[p].rows - lead), kQuantStripCols), [&](int64_t task, int) {
      for (int64_t row = begin(task); row < (task == 0 ? std::min(lead, parts[p].rows) : begin(task + 1)); ++row) {
        const int64_t to = column(p, row);
        PackColumn(format, blocks + row * row_bytes, in_features, to % kQuantStripCols,
                   panels.data_.get() + panels.strips_[to / kQuantStripCols].offset);
      }
    });
  }
  return panels;
}

void QuantizedPanels::Unpack(int64_t column, float* out) const {
  const int64_t strip = column / kQuantStripCols;
  UnpackColumn(format(strip), data(strip), in_features_, column % kQuantStripCols, out);
}

}  // namespace coppice::ops
