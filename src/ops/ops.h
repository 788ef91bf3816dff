// The dense operations of a transformer layer, behind one interface per device: matrix products with packed weights and what the
// forward pass needs between them. Attention is a library of its own (coppice/attention/attention.h); nothing here knows a model.
// Layer: ops. Choices and figures: docs/ops.md.
//
// Two dtypes meet here. The *compute dtype* (f32 or bf16) is that of weights and of every product's input; sums, product outputs
// and the residual stream are fp32.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "coppice/core/executor.h"
#include "coppice/core/status.h"
#include "coppice/core/tensor_view.h"
#include "coppice/core/types.h"

namespace coppice::ops {

// A row-major matrix whose element type is known at run time; stride in elements.
struct AnyMatrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0, stride = 0;

  std::byte* Row(int64_t r) const { return static_cast<std::byte*>(data) + r * stride * SizeOf(dtype); }
};

// A product's input must have this many rows readable, rounded up: full tiles are multiplied and surplus rows dropped.
inline constexpr int64_t kRowPadding = 16;
inline constexpr int32_t kMaxHeadDim = 256;
constexpr int64_t PadRows(int64_t rows) { return (rows + kRowPadding - 1) / kRowPadding * kRowPadding; }

// Consecutive inputs of a row that share a scale and a minimum in a CodedWeight.
inline constexpr int64_t kCodeBlock = 32;
// A matrix as a quantised file stores it: element (r, i) is scales[r][i / 32] * codes[r][i] + minima[r][i / 32].
struct CodedWeight {
  int32_t bits = 0;               // 4: codes 0 to 15; 8: -128 to 127
  const int8_t* codes = nullptr;  // [rows, in_features]
  const F16* scales = nullptr;    // [rows, in_features / 32]
  const F16* minima = nullptr;    // likewise
};

// One matrix as a model stores it: [rows, in_features] of the compute dtype, row-major; bias [rows] fp32 or null. With `coded`, the
// same matrix before it was rounded to the compute dtype: products of few rows read it instead, in fewer bytes.
struct LinearPart {
  const void* weight = nullptr;
  int64_t rows = 0;
  const float* bias = nullptr;
  std::optional<CodedWeight> coded = std::nullopt;
};

enum class PartOrder : uint8_t {
  kConcatenated,  // outputs of part 0, then of part 1, ...: q, k, v as one product
  kGateUp,        // two parts of equal rows, consumed by LinearSiluMul
};

// Weights in the layout of the device's kernels. Immutable: may be used by several Ops of the same kind and thread at once.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }  // kGateUp: rows of one part
  DType dtype() const { return dtype_; }

 protected:
  int64_t in_features_ = 0, out_features_ = 0;
  DType dtype_ = DType::kF32;
};

struct RmsNormArgs {
  std::span<const float> weight;  // [cols]
  float eps = 1e-5f;
};

// Rows of one attention layer's projections, split, rotated and converted. heads are contiguous in every row.
struct SplitHeadsArgs {
  MatrixView<const float> qkv;       // [T, (num_qo_heads + 2 * num_kv_heads) * head_dim]: q heads, k heads, v heads
  MatrixView<const float> cos, sin;  // [T, head_dim / 2], from RopeAngles
  int32_t num_qo_heads = 0, num_kv_heads = 0, head_dim = 0;  // head_dim even, at most kMaxHeadDim
  RmsNormArgs q_norm, k_norm;                                // over each head before the rotation; empty weight: none
  AnyMatrix q, k, v;                                         // [T, num_qo_heads * head_dim], [T, num_kv_heads * head_dim] twice
};

// Calls return when the work is done (CPU). Shapes are the caller's promise and are checked in debug builds only; x and y of one
// call do not overlap unless said. Thread-compatible: one call at a time, since the executor runs one loop at a time.
class Ops {
 public:
  struct Options {
    // A row's bits do not depend on how many rows ride with it, given that its x is dense (docs/ops.md, "Deterministic mode").
    bool deterministic = false;
  };
  static Result<std::unique_ptr<Ops>> CreateCpu(Executor* executor, const Options& options);  // executor outlives the result
  virtual ~Ops() = default;

  // Whether Pack makes use of LinearPart::coded for weights of this dtype.
  virtual bool WantsCodes(DType dtype) const = 0;

  // Which kernels this machine runs, for `inspect` and logs: "avx512_bf16 + oneDNN brgemm".
  virtual std::string_view description() const = 0;

  // Copies the parts into the kernels' layout. dtype: kF32 or kBF16, of all parts. INVALID_ARGUMENT for shapes that cannot be
  // multiplied; UNIMPLEMENTED for a dtype without kernels. Allocates; everything below does not.
  virtual Result<std::unique_ptr<LinearWeight>> Pack(DType dtype, int64_t in_features, std::span<const LinearPart> parts,
                                                     PartOrder order = PartOrder::kConcatenated) = 0;

  // y = x W^T + b. x: [T, in_features] of the weight's dtype; y: [T, out_features].
  virtual void Linear(const AnyMatrix& x, const LinearWeight& weight, MatrixView<float> y) = 0;
  // y += x W^T + b.
  virtual void LinearAdd(const AnyMatrix& x, const LinearWeight& weight, MatrixView<float> y) = 0;
  // y = silu(x G^T) * (x U^T), weight packed kGateUp; y: [T, out_features] of any dtype.
  virtual void LinearSiluMul(const AnyMatrix& x, const LinearWeight& weight, const AnyMatrix& y) = 0;

  // y[i] = row token_ids[i] of the packed matrix [vocab, hidden], which may also be the output projection (tied embeddings).
  virtual void Embed(std::span<const int32_t> token_ids, const LinearWeight& table, MatrixView<float> y) = 0;
  // y[i] = x[r] * weight / rms(x[r]) with r = rows[i], or i if `rows` is empty.
  virtual void RmsNorm(MatrixView<const float> x, const RmsNormArgs& args, const AnyMatrix& y,
                       std::span<const int32_t> rows = {}) = 0;
  // cos, sin: [T, n] of positions[t] * inverse_frequencies[i], the product taken in fp32 as the model was trained.
  virtual void RopeAngles(std::span<const int32_t> positions, std::span<const float> inverse_frequencies, MatrixView<float> cos,
                          MatrixView<float> sin) = 0;
  // q, k, v from one fused projection: per-head norm, half-split rotation (pairs (i, i + head_dim / 2)), conversion.
  virtual void SplitHeads(const SplitHeadsArgs& args) = 0;
};

}  // namespace coppice::ops
