// The inner loops of the CPU ops, compiled once per instruction set and chosen at run time. kernels-inl.h has the bodies;
// kernels_<isa>.cc compile them with that set's flags; nothing else may be compiled with those flags.
// Layer: ops, private.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "coppice/core/types.h"
#include "ops/cpu/quantized_kernels.h"
#include "ops/ops.h"

namespace coppice::ops {

// Output columns that lie together in packed weights. f32: [panel][k][64]; bf16: [panel][k / 2][64][2], so that one 32-bit lane
// holds the two elements that a bf16 dot product consumes. These are oneDNN's BA16a64b and BA16a64b2a.
inline constexpr int64_t kPanelCols = 64;

// Coded weights (ops.h): a panel is two strips of 32 columns; a strip is, for each block of 32 inputs, the codes and then 32 scales
// and 32 minima (f16). Codes lie in 32-bit words, one per column, so that two shifts and a mask give pairs of consecutive inputs as
// 16-bit integers. 4 bits: word j has inputs 8 j + 2 t and 8 j + 2 t + 1 in bits 4 t and 16 + 4 t; 8 bits: inputs 4 j, 4 j + 2,
// 4 j + 1, 4 j + 3 in its bytes.
inline constexpr int64_t kStripCols = 32;
constexpr int64_t CodedBlockBytes(int32_t bits) { return kStripCols * (kCodeBlock * bits / 8 + 2 * 2); }

// x as 16-bit integers: codes[i] * scales[i / 32] is x[i] to within 2^-16 of its block's largest magnitude.
struct CodedInput {
  int16_t* codes;  // [rows, k]
  float* scales;   // [rows, k / 32]
  float* sums;     // [rows, k / 32] of the block's codes x scale
};

// Bytes to prefetch into the second-level cache while a panel is multiplied: some at each step, since many requests at once leave
// no room for those that the product waits for.
struct Ahead {
  const std::byte* from = nullptr;
  int64_t bytes = 0;
};

struct Kernels {
  const char* isa;
  bool multiplies_bf16;  // with an instruction for pairs of bf16
  // tile[r][c] = sum over k, in increasing order, of x[r][k] * panel[k][c]; the bits of a row do not depend on `rows`.
  // x: rows x_stride elements apart; k even for bf16; tile: kPanelCols wide, rows tile_stride apart.
  void (*panel_f32)(const float* x, int64_t x_stride, int64_t rows, const float* panel, int64_t k, float* tile, int64_t tile_stride,
                    Ahead ahead);
  void (*panel_bf16)(const BF16* x, int64_t x_stride, int64_t rows, const BF16* panel, int64_t k, float* tile, int64_t tile_stride,
                     Ahead ahead);
  // The same with coded weights: sums over a block are exact integers. Null where the instruction set has no gain to offer.
  // ahead: while the panel is read, what lies so many bytes behind it is asked for, to the second-level cache.
  void (*code_input)(const BF16* x, int64_t k, int16_t* codes, float* scales, float* sums);  // one row, k a multiple of 32
  void (*panel_coded4)(const CodedInput& x, int64_t rows, const std::byte* panel, int64_t ahead, int64_t k, float* tile,
                       int64_t tile_stride);
  void (*panel_coded8)(const CodedInput& x, int64_t rows, const std::byte* panel, int64_t ahead, int64_t k, float* tile,
                       int64_t tile_stride);

  const QuantizedKernels* quantized;

  void (*convert)(const float* x, int64_t n, DType dtype, void* y);
  void (*add)(const float* x, int64_t n, float* y);  // y += x
  void (*activate)(Activation activation, const float* x, int64_t n, DType dtype, void* y);
  void (*gated)(Activation activation, const float* gate, const float* up, int64_t n, DType dtype, void* y);
  // bias: null for none. RMS norms have none.
  void (*rms_norm)(const float* x, const float* weight, const float* bias, int64_t n, float eps, DType dtype, void* y);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int64_t n, float eps, DType dtype, void* y);
  void (*add_rms_norm)(const float* x, const float* weight, const float* bias, int64_t n, float eps, float* y);  // y += norm(x)
  void (*add_layer_norm)(const float* x, const float* weight, const float* bias, int64_t n, float eps, float* y);
  // Rotation of one head's 2 half elements: pairs (i, i + half), or (2 i, 2 i + 1), i < half.
  void (*rotate)(const float* x, const float* cos, const float* sin, int64_t half, DType dtype, void* y);
  void (*rotate_pairs)(const float* x, const float* cos, const float* sin, int64_t half, DType dtype, void* y);
  // logit_scan.h: of each block the maximum, or the sum of its exponentials; those and the sums go to where `exps` and `sums` are
  // not null. Returns the maximum or the sum of all.
  float (*block_maxima)(const float* logits, int64_t count, float* maxima);
  double (*block_exps)(const float* logits, int64_t count, float max, float inverse_temperature, float* exps, float* sums);
};

// The best that this machine runs. COPPICE_CPU_ISA in the environment lowers the choice (tests, bug reports): baseline (x86-64-v2
// here), avx2, avxvnni or avx512, as in attention/cpu/cpu_features.h; its other names leave the best. Products may take others that
// were measured to be faster: product_forms.h.
const Kernels& SelectKernels();
// All that this machine runs, best first.
std::span<const Kernels* const> SupportedKernels();

namespace x86_64_v2 {
extern const Kernels kKernels;
extern const QuantizedKernels kQuantizedKernels;
}  // namespace x86_64_v2
namespace avx2 {
extern const Kernels kKernels;
extern const QuantizedKernels kQuantizedKernels;
}  // namespace avx2
namespace avx_vnni {
extern const Kernels kKernels;
extern const QuantizedKernels kQuantizedKernels;
}  // namespace avx_vnni
namespace avx512 {
extern const Kernels kKernels;
extern const QuantizedKernels kQuantizedKernels;
}  // namespace avx512
namespace avx512_bf16 {
extern const Kernels kKernels;
extern const QuantizedKernels kQuantizedKernels;
}  // namespace avx512_bf16

}  // namespace coppice::ops
