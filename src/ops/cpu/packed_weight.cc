#include "ops/cpu/packed_weight.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/cache_line.h"
#include "core/check.h"
#include "core/math.h"

namespace coppice::ops {
namespace {

// Elements of one column that lie next to each other.
int64_t Depth(DType dtype) { return dtype == DType::kBF16 ? 2 : 1; }

}  // namespace

template <class T>
void PackedWeight::PackRow(const T* row, int64_t column) {
  const int64_t depth = Depth(dtype_);
  T* panel = reinterpret_cast<T*>(panels_.get()) + column / kPanelCols * panel_elements_ + column % kPanelCols * depth;
  for (int64_t k = 0; k < in_features_; ++k) panel[k / depth * depth * kPanelCols + k % depth] = row[k];
}

// The wider of the parts' codes serves all; one part without any, and there are none.
Status PackedWeight::AllocateCodes(WeightMemory& memory, std::span<const LinearPart> parts) {
  int32_t bits = 4;
  for (const LinearPart& part : parts) {
    const auto* format = std::get_if<CodedFormat>(&part.format);
    if (format == nullptr) return OkStatus();
    if (format->bits != 4 && format->bits != 8)
      return InvalidArgument("a weight has codes of " + std::to_string(format->bits) + " bits; expected 4 or 8");
    bits = std::max(bits, format->bits);
  }
  if (in_features_ % kCodeBlock != 0)
    return InvalidArgument("a coded weight has " + std::to_string(in_features_) + " input features; expected a multiple of " +
                           std::to_string(kCodeBlock));
  code_bits_ = bits;
  is_dense_ = false;
  COPPICE_ASSIGN_OR_RETURN(coded_panels_, memory.Allocate(num_panels_ * coded_panel_bytes()));
  return OkStatus();
}

// Layout: kernels.h. Columns without a row stay zero.
void PackedWeight::PackCodes(const WeightCodes& coded, int64_t row, int64_t column) {
  const int64_t blocks = in_features_ / kCodeBlock, block_bytes = CodedBlockBytes(code_bits_);
  const int64_t in_strip = column % kStripCols, strip = column % kPanelCols / kStripCols;
  std::byte* block = coded_panels_.get() + column / kPanelCols * coded_panel_bytes() + strip * blocks * block_bytes;
  const int8_t* codes = coded.codes + row * in_features_;
  const int64_t per_word = 32 / code_bits_;
  for (int64_t b = 0; b < blocks; ++b, block += block_bytes, codes += kCodeBlock) {
    for (int64_t j = 0; j < kCodeBlock / per_word; ++j) {
      uint32_t word = 0;
      for (int64_t i = 0; i < per_word; ++i) {
        const uint32_t code = static_cast<uint8_t>(codes[j * per_word + i]);
        // An even input's code in the low half, its successor's 16 bits above.
        word |= code << (i / 2 * code_bits_ + i % 2 * 16);
      }
      std::memcpy(block + (j * kStripCols + in_strip) * sizeof(word), &word, sizeof(word));
    }
    std::byte* scales = block + kStripCols * kCodeBlock * code_bits_ / 8;
    std::memcpy(scales + in_strip * sizeof(F16), &coded.scales[row * blocks + b], sizeof(F16));
    std::memcpy(scales + (kStripCols + in_strip) * sizeof(F16), &coded.minima[row * blocks + b], sizeof(F16));
  }
}

Result<std::unique_ptr<PackedWeight>> PackedWeight::Create(Executor& executor, Memory& memory, DType dtype, int64_t in_features,
                                                           std::span<const LinearPart> parts, PartOrder order, bool keep_codes) {
  if (dtype == DType::kF16)
    return Unimplemented("matrix products have no kernels for f16 weights on the CPU; convert them to bf16 or f32");
  if (in_features <= 0 || in_features % Depth(dtype) != 0)
    return InvalidArgument("a weight has " + std::to_string(in_features) + " input features; expected a positive multiple of " +
                           std::to_string(Depth(dtype)) + " for " + std::string(Name(dtype)));
  const bool paired = order == PartOrder::kGateUp;
  if (parts.empty() || (paired && (parts.size() != 2 || parts[0].rows != parts[1].rows)))
    return InvalidArgument(paired ? "gate and up must be two weights with equally many rows"
                                  : "a product needs at least one weight");

  auto weight = std::make_unique<PackedWeight>();
  weight->dtype_ = dtype;
  weight->in_features_ = in_features;
  int64_t total_rows = 0;
  for (const LinearPart& part : parts) {
    if (part.rows <= 0) return InvalidArgument("a weight has " + std::to_string(part.rows) + " rows; expected at least 1");
    weight->first_columns_.push_back(total_rows);
    weight->part_rows_.push_back(part.rows);
    total_rows += part.rows;
  }
  weight->out_features_ = paired ? parts[0].rows : total_rows;
  weight->panel_group_ = paired ? kMaxGroup : 1;
  weight->num_panels_ = CeilDiv(weight->out_features_, kPanelCols) * weight->panel_group_;
  const auto has_bias = [](const LinearPart& part) { return part.bias != nullptr; };
  if (std::ranges::any_of(parts, has_bias)) weight->bias_.assign(weight->num_panels_ * kPanelCols, 0.0f);
  for (size_t p = 0; p < parts.size(); ++p) weight->PackBias(parts[p], p);
  const auto is_in_blocks = [](const LinearPart& part) { return std::holds_alternative<BlocksFormat>(part.format); };
  if (std::ranges::none_of(parts, is_in_blocks)) {
    COPPICE_RETURN_IF_ERROR(weight->PackPanels(executor, memory, parts, keep_codes));
    return weight;
  }
  if (!QuantizedPanels::CanPack(in_features, ShapesOf(parts), order))
    return InvalidArgument(
        "parts of one product meet inside 32 outputs and differ in format, or their inputs are no whole blocks: convert them");
  weight->is_dense_ = false;
  weight->coarse_input_ =
      std::ranges::all_of(parts, [](const LinearPart& part) { return std::get<BlocksFormat>(part.format).coarse_input; });
  COPPICE_ASSIGN_OR_RETURN(weight->quantized_,
                           QuantizedPanels::Create(executor, memory.codes, in_features, parts, weight->num_panels_ * kPanelCols,
                                                   [&](size_t p, int64_t row) { return weight->ColumnOf(p, row); }));
  return weight;
}

Status PackedWeight::PackPanels(Executor& executor, Memory& memory, std::span<const LinearPart> parts, bool keep_codes) {
  panel_elements_ = RoundUp(in_features_, 16 * Depth(dtype_)) * kPanelCols;  // whole blocks of oneDNN's layout
  panel_bytes_ = panel_elements_ * static_cast<int64_t>(SizeOf(dtype_));
  COPPICE_ASSIGN_OR_RETURN(panels_, memory.panels.Allocate(num_panels_ * panel_bytes_));
  if (keep_codes) COPPICE_RETURN_IF_ERROR(AllocateCodes(memory.codes, parts));
  for (size_t p = 0; p < parts.size(); ++p) PackElements(executor, parts[p], p);
  return OkStatus();
}

void PackedWeight::PackBias(const LinearPart& part, size_t index) {
  if (part.bias == nullptr) return;
  for (int64_t row = 0; row < part.rows; ++row) bias_[ColumnOf(index, row)] = part.bias[row];
}

void PackedWeight::PackElements(Executor& executor, const LinearPart& part, size_t index) {
  executor.ParallelFor(CeilDiv(part.rows, kPanelCols), [&](int64_t block, int) {
    for (int64_t row = block * kPanelCols; row < std::min((block + 1) * kPanelCols, part.rows); ++row) {
      const int64_t column = ColumnOf(index, row);
      if (dtype_ == DType::kBF16) {
        PackRow(static_cast<const BF16*>(part.weight) + row * in_features_, column);
      } else {
        PackRow(static_cast<const float*>(part.weight) + row * in_features_, column);
      }
      if (code_bits_ != 0) PackCodes(part.codes, row, column);
    }
  });
}

Status PackedWeight::Repack(Executor& executor, const LinearPart& with, size_t part) {
  COPPICE_RETURN_IF_ERROR(CheckRepack(*this, with, part, !bias_.empty()));
  PackBias(with, part);
  if (with.weight != nullptr) PackElements(executor, with, part);
  return OkStatus();
}

}  // namespace coppice::ops
