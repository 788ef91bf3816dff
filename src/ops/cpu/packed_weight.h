// Weights as the CPU's kernels read them: panels of 64 columns (kernels.h), and beside them the codes of a quantised file.
// Layer: ops, private.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/device.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/onednn_tiles.h"
#include "ops/cpu/quantized_panels.h"
#include "ops/cpu/weight_memory.h"
#include "ops/ops.h"

namespace coppice::ops {

inline constexpr int64_t kMaxGroup = 2;  // panels per task: gate and up together, otherwise one

class PackedWeight final : public Weight {
 public:
  struct Memory {
    explicit Memory(Device* device) : panels(device), codes(device) {}
    WeightMemory panels, codes;
  };
  // keep_codes: those of the parts, if all have them.
  static Result<std::unique_ptr<PackedWeight>> Create(Executor& executor, Memory& memory, DType dtype, int64_t in_features,
                                                      std::span<const LinearPart> parts, PartOrder order, bool keep_codes);

  int64_t panel_group() const { return panel_group_; }
  int64_t num_groups() const { return num_panels_ / panel_group_; }
  int64_t group_bytes() const { return panel_group_ * panel_bytes_; }
  const std::byte* Group(int64_t group) const { return panels_.get() + group * group_bytes(); }
  const float* GroupBias(int64_t group) const { return bias_.empty() ? nullptr : &bias_[group * panel_group_ * kPanelCols]; }
  int64_t panel_elements() const { return panel_elements_; }

  // The weight as its file has it, instead of panels; null: panels.
  const QuantizedPanels* quantized() const { return quantized_ ? &*quantized_ : nullptr; }
  bool coarse_input() const { return coarse_input_; }  // of all its blocks

  // As of Ops::Repack.
  Status Repack(Executor& executor, const LinearPart& with, size_t part);

  int32_t code_bits() const { return code_bits_; }  // 0: not coded
  const std::byte* CodedPanel(int64_t panel) const { return coded_panels_.get() + panel * coded_panel_bytes(); }

  // Calls write(k, element) for the elements of a row.
  template <class Write>
  void ForEachElement(int64_t row, Write write) const;

  // Up to this many rows of a block the panel kernels stream weights faster than oneDNN with matrix units (docs/matrix_products.md
  // has the measurement).
  static constexpr int64_t kFewMatrixRows = 4;
  // Up to this many rows coded weights, which are a third of the bytes, beat both.
  int64_t coded_rows() const { return code_bits_ == 0 ? 0 : matrix_units() ? 8 : 16; }

  const OneDnnTiles::Plan* plan = nullptr;  // null: panel kernels only

 private:
  bool matrix_units() const { return plan != nullptr && OneDnnTiles::UsesMatrixUnits(*plan); }
  template <class T>
  void PackRow(const T* row, int64_t column);
  void PackBias(const LinearPart& part, size_t index);
  // The elements of a part and, where the weight is coded, its codes.
  void PackElements(Executor& executor, const LinearPart& part, size_t index);
  Status AllocateCodes(WeightMemory& memory, std::span<const LinearPart> parts);
  void PackCodes(const WeightCodes& coded, int64_t row, int64_t column);
  int64_t coded_panel_bytes() const { return kPanelCols / kStripCols * in_features_ / kCodeBlock * CodedBlockBytes(code_bits_); }

  Status PackPanels(Executor& executor, Memory& memory, std::span<const LinearPart> parts, bool keep_codes);
  // Of a part's row.
  int64_t ColumnOf(size_t part, int64_t row) const {
    if (panel_group_ == 1) return first_columns_[part] + row;
    return (row / kPanelCols * kMaxGroup + static_cast<int64_t>(part)) * kPanelCols + row % kPanelCols;
  }

  std::shared_ptr<std::byte> panels_, coded_panels_;
  std::optional<QuantizedPanels> quantized_;
  bool coarse_input_ = false;
  int32_t code_bits_ = 0;
  std::vector<float> bias_;             // empty, or one per packed column
  std::vector<int64_t> first_columns_;  // of each part, where they lie one behind the other
  int64_t num_panels_ = 0, panel_group_ = 1, panel_elements_ = 0, panel_bytes_ = 0;
};

template <class Write>
void PackedWeight::ForEachElement(int64_t row, Write write) const {
  if (quantized_) {
    thread_local std::vector<float> values;
    values.resize(in_features_);
    quantized_->Unpack(row, values.data());
    for (int64_t k = 0; k < in_features_; ++k) write(k, values[k]);
    return;
  }
  const int64_t panel = row / kPanelCols * panel_elements_, column = row % kPanelCols;
  if (dtype_ == DType::kF32) {
    const float* from = reinterpret_cast<const float*>(panels_.get()) + panel + column;
    for (int64_t k = 0; k < in_features_; ++k) write(k, from[k * kPanelCols]);
  } else {
    const BF16* from = reinterpret_cast<const BF16*>(panels_.get()) + panel + column * 2;
    for (int64_t k = 0; k < in_features_; k += 2, from += kPanelCols * 2) {
      write(k, from[0].ToFloat());
      write(k + 1, from[1].ToFloat());
    }
  }
}

}  // namespace coppice::ops
