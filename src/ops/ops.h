// The dense operations of a transformer layer, behind one interface per device: matrix products with packed weights and what the
// forward pass needs between them. Attention is a library of its own (coppice/attention/attention.h); nothing here knows a model.
// Layer: ops. Choices and figures: docs/matrix_products.md.
//
// Two dtypes meet here. The *compute dtype* (f32, bf16 or f16, as the device allows) is that of weights and of every product's
// input; sums, product outputs that are said to be f32 and the residual stream are fp32.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "coppice/attention/attention.h"
#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "core/device.h"
#include "core/device_tensor.h"
#include "ops/weight.h"

namespace coppice::ops {

// Allocations of activations are padded to this many rows: products may read (never write) rows up to the next multiple.
inline constexpr int64_t kRowPadding = 16;
inline constexpr int32_t kMaxHeadDim = 256;

enum class Activation : uint8_t {
  kSilu,      // x / (1 + e^-x)
  kGeluTanh,  // x / (1 + e^-2u) = x / 2 (1 + tanh u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
  kGelu,      // x / 2 (1 + erf(x / sqrt 2))
};

// The operation on a product's sums before they are stored.
struct Epilogue {
  enum class Kind : uint8_t {
    kStore,     // y = x W^T + b
    kAdd,       // y += x W^T + b; y f32 (the residual stream)
    kActivate,  // y = act(x W^T + b)
    kGated,     // y = act(x G^T + b_g) * (x U^T + b_u); weight packed kGateUp
  };
  Kind kind = Kind::kStore;
  Activation activation = Activation::kSilu;
};

struct EmbedArgs {
  float scale = 1.0f;
  bool add = false;  // y += instead of y =: learned positions after the tokens
  // The id that row 0 of the table is of. An id of no row of the table counts as a row of zeros: another rank has it.
  int32_t first_id = 0;
};

enum class NormKind : uint8_t {
  kRms,    // x / sqrt(mean(x^2) + eps) * weight
  kLayer,  // (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias
};
struct NormArgs {
  NormKind kind = NormKind::kRms;
  DeviceSpan<const float> weight;  // [cols]; Gemma's 1 + w is folded in at load
  DeviceSpan<const float> bias;    // [cols] or empty
  float eps = 1e-5f;
};

// Pairs of a rotated head: halves (i, i + rotary_dim / 2), or neighbours (2i, 2i + 1).
enum class RopePairs : uint8_t { kHalves, kNeighbours };

// The heads of one layer's projections, and which of a head's elements are rotated.
struct QkvHeads {
  int32_t num_qo_heads = 0, num_kv_heads = 0, head_dim = 0;
  int32_t rotary_dim = 0;  // 0: no rotation
  RopePairs pairs = RopePairs::kHalves;
};

// Rows of one layer's projections: split into heads, normalised, rotated, q converted, k and v converted into their pages.
struct RopeAppendArgs {
  // [T, (num_qo_heads + 2 * num_kv_heads) * head_dim]: q heads, k heads, v heads; f32. Read by RopeAppend.
  DeviceTensor qkv;
  // [T, rotary_dim / 2] f32, from RopeAngles; no columns: no rotation. A head's elements from rotary_dim on are not rotated.
  ConstDeviceTensor cos, sin;
  RopePairs pairs = RopePairs::kHalves;
  int32_t num_qo_heads = 0, num_kv_heads = 0, head_dim = 0;  // head_dim even, at most kMaxHeadDim
  std::optional<NormArgs> q_norm, k_norm;                    // over each head before the rotation
  DeviceTensor q;                                            // [T, num_qo_heads * head_dim] of the compute dtype
  attention::KvLayerView kv;                                 // of the layer
  DeviceSpan<const int64_t> slot_mapping;                    // [T] page * page_size + slot; negative: K and V are not stored
};

// Calls are in stream order and asynchronous on CUDA; on a CPU they return when the work is done. A Status says what a launch or
// the device said; shapes, ids, rows and slots are the caller's promise and are checked in debug builds only; x and y of one call
// do not overlap unless said. Pack, PackQkv and Tune allocate, nothing else does, so that a step can be captured into a graph.
// Thread-compatible.
class Ops {
 public:
  struct Options {
    // A row's bits do not depend on how many rows ride with it, given that its x is dense (docs/matrix_products.md, "Deterministic
    // mode").
    bool deterministic = false;
    // Where Tune keeps what it measured; empty: the user's cache folder (docs/matrix_products.md, "CUDA").
    std::string cache_folder = {};
  };
  // `device` outlives the result. UNAVAILABLE where no operations are built for its kind.
  static Result<std::unique_ptr<Ops>> Create(Device* device, const Options& options);
  virtual ~Ops() = default;

  // Whether Pack takes parts of these formats, and products with inputs of `dtype` are faster with them.
  virtual FormatChoice Accepts(std::span<const PartShape> parts, DType dtype, int64_t in_features,
                               PartOrder order = PartOrder::kConcatenated) const = 0;
  // Which kernels this machine runs, for `inspect` and logs: "avx512_bf16 + oneDNN brgemm".
  virtual std::string description() const = 0;
  // Copies the parts into the kernels' layout in device memory. dtype is that of all parts. Codes are kept where Accepts prefers
  // them. INVALID_ARGUMENT for shapes that cannot be multiplied; UNIMPLEMENTED for a dtype without kernels; RESOURCE_EXHAUSTED.
  virtual Result<std::unique_ptr<Weight>> Pack(DType dtype, int64_t in_features, std::span<const LinearPart> parts,
                                               PartOrder order = PartOrder::kConcatenated) = 0;

  // Pack, in whatever order of rows suits NormQkvRope and QkvRope, which alone take the result. The parts are all rows of q, of k
  // and of v, in this order.
  virtual Result<std::unique_ptr<Weight>> PackQkv(DType dtype, int64_t in_features, std::span<const LinearPart> parts,
                                                  const QkvHeads& heads);

  // Replaces the elements of one part of a dense weight in place, its bias, or both: a null pointer leaves what is there. Addresses
  // stay, so captured graphs do. `with` has the part's rows, DenseFormat, and lies in host memory or in that of the device. No
  // product with the weight is under way; host memory was read on return, products may come when the device's default stream was
  // waited for. FAILED_PRECONDITION: the weight is not dense. INVALID_ARGUMENT:
  // there is no such part, its rows or format are others, or it has no bias to replace.
  virtual Status Repack(const LinearPart& with, size_t part, Weight* weight) = 0;

  // Puts the products of a step of so many rows into the stream, through these Ops.
  using StepOfRows = std::function<Status(int64_t rows)>;
  // Measures with which kernels steps of 17 to `max_rows` rows, at most 2,048, are fastest, unless this machine's file says so
  // already: tens of seconds for a model of 8 thousand million weights, then nothing. Without it products run with what the
  // library's heuristic names. `step` runs with any number of rows up to `max_rows`, now and captured, and does the same each time.
  // Waits for the device. Where there is no choice: does nothing. FAILED_PRECONDITION where the file cannot be written.
  virtual Status Tune(int64_t max_rows, const StepOfRows& step, Stream stream) = 0;

  // y = epilogue(x W^T + b). x: [T, in_features] of the weight's dtype; y: [T, out_features] of f32 or the weight's dtype.
  virtual Status Linear(ConstDeviceTensor x, const Weight& weight, DeviceTensor y, const Epilogue& epilogue, Stream stream) = 0;
  // y[i] = scale * row token_ids[i] - first_id of the packed matrix [vocab, hidden], which may also be the output projection (tied
  // embeddings). y f32.
  virtual Status Embed(DeviceSpan<const int32_t> token_ids, const Weight& table, const EmbedArgs& args, DeviceTensor y,
                       Stream stream) = 0;
  // x = value, everywhere. x f32 without gaps.
  virtual Status Fill(DeviceTensor x, float value, Stream stream) = 0;
  // y[i] = x[rows[i]], of one dtype.
  virtual Status Gather(ConstDeviceTensor x, DeviceSpan<const int32_t> rows, DeviceTensor y, Stream stream) = 0;
  // y[i] = norm(x[r]) with r = rows[i], or i if `rows` is empty. x f32; y f32 or the compute dtype.
  virtual Status Norm(ConstDeviceTensor x, const NormArgs& args, DeviceTensor y, DeviceSpan<const int32_t> rows, Stream stream) = 0;
  // y = epilogue(norm(x) W^T + b), x f32. `normed`, of the weight's dtype and x's shape, may be used on the way, or not.
  virtual Status NormLinear(ConstDeviceTensor x, const NormArgs& norm, DeviceTensor normed, const Weight& weight, DeviceTensor y,
                            const Epilogue& epilogue, Stream stream);
  // x += norm(a), both f32: norms after a block.
  virtual Status AddNorm(ConstDeviceTensor a, const NormArgs& args, DeviceTensor x, Stream stream) = 0;
  // cos, sin: f32 [T, n] of scale * cos and sin(positions[t] * inverse_frequencies[i]), the angle computed in fp32 as the model was
  // trained.
  virtual Status RopeAngles(DeviceSpan<const int32_t> positions, DeviceSpan<const float> inverse_frequencies, float scale,
                            DeviceTensor cos, DeviceTensor sin, Stream stream) = 0;
  virtual Status RopeAppend(const RopeAppendArgs& args, Stream stream) = 0;
  // RopeAppend of x W^T + b, weight from PackQkv. `args.qkv` may be used on the way, or not.
  virtual Status QkvRope(ConstDeviceTensor x, const Weight& weight, const RopeAppendArgs& args, Stream stream);
  // RopeAppend of norm(x) W^T + b; see NormLinear.
  virtual Status NormQkvRope(ConstDeviceTensor x, const NormArgs& norm, DeviceTensor normed, const Weight& weight,
                             const RopeAppendArgs& args, Stream stream);
};

}  // namespace coppice::ops
