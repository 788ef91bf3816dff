// The weights of products: formats that stored matrices have, as values; a product's parts; and what Ops::Pack makes of them.
// Layer: ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "ops/quantized_blocks.h"

namespace coppice::ops {

// Consecutive inputs of a row that share a scale and a minimum in CodedFormat.
inline constexpr int64_t kCodeBlock = 32;

// Elements of the compute dtype, row-major.
struct DenseFormat {
  bool operator==(const DenseFormat&) const = default;
};
// The same, and beside them the integers of a quantised file, in fewer bytes: products of few rows may read those instead.
struct CodedFormat {
  int32_t bits = 0;  // 4: codes 0 to 15; 8: -128 to 127
  bool operator==(const CodedFormat&) const = default;
};
// The blocks of a quantised file, each row whole blocks. All products read them.
struct BlocksFormat {
  BlockFormat format = BlockFormat::kQ8_0;
  // Products may bring their input to 8 bits, of which a block of 32 has its own range, where that is faster. Its error:
  // docs/numerics.md. Not in the deterministic mode.
  bool coarse_input = false;
  bool operator==(const BlocksFormat&) const = default;
};
using WeightFormat = std::variant<DenseFormat, CodedFormat, BlocksFormat>;

// The properties of a part that Ops::Accepts depends on.
struct PartShape {
  int64_t rows = 0;
  WeightFormat format;
};

// Element (r, i) is scales[r][i / 32] * codes[r][i] + minima[r][i / 32].
struct WeightCodes {
  const int8_t* codes = nullptr;  // [rows, in_features]
  const F16* scales = nullptr;    // [rows, in_features / 32]
  const F16* minima = nullptr;    // likewise
};

// One matrix of a product, [rows, in_features], in host memory.
struct LinearPart {
  const void* weight = nullptr;  // the elements, or the blocks
  int64_t rows = 0;
  const float* bias = nullptr;  // [rows], or null
  WeightFormat format = DenseFormat{};
  WeightCodes codes = {};  // of CodedFormat
};

std::vector<PartShape> ShapesOf(std::span<const LinearPart> parts);

enum class PartOrder : uint8_t {
  kConcatenated,  // outputs of part 0, then of part 1, ...: q, k, v as one product
  kGateUp,        // two parts of equal rows, consumed by Epilogue::kGated
};

// Whether an implementation of Ops takes formats, and prefers them.
struct FormatChoice {
  bool taken = false;      // Pack takes such parts
  bool preferred = false;  // and products with them are faster than with dense ones
};

// Weights in the layout of the device's kernels. Between calls of Repack they may be used by several Ops of the same device and
// thread at once.
class Weight {
 public:
  virtual ~Weight() = default;
  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }  // kGateUp: rows of one part
  DType dtype() const { return dtype_; }
  // The rows of each part, in the order in which they were packed.
  std::span<const int64_t> part_rows() const { return part_rows_; }
  // Whether Ops::Repack can replace its elements: it holds nothing but dense ones.
  bool is_dense() const { return is_dense_; }

 protected:
  int64_t in_features_ = 0, out_features_ = 0;
  DType dtype_ = DType::kF32;
  std::vector<int64_t> part_rows_;
  bool is_dense_ = true;
};

// The errors of Ops::Repack that are found before anything changes.
Status CheckRepack(const Weight& weight, const LinearPart& with, size_t part, bool has_bias);

}  // namespace coppice::ops
