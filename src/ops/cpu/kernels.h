// The inner loops of the CPU ops, compiled once per instruction set and chosen at run time. kernels-inl.h has the bodies;
// kernels_<isa>.cc compile them with that set's flags; nothing else may be compiled with those flags.
// Layer: ops, private.
#pragma once

#include <cstdint>
#include <span>

#include "coppice/types.h"

namespace coppice::ops {

// Output columns that lie together in packed weights. f32: [panel][k][64]; bf16: [panel][k / 2][64][2], so that one 32-bit lane
// holds the two elements that a bf16 dot product consumes. These are oneDNN's BA16a64b and BA16a64b2a.
inline constexpr int64_t kPanelCols = 64;

struct Kernels {
  const char* isa;
  // tile[r][c] = sum over k, in increasing order, of x[r][k] * panel[k][c]; the bits of a row do not depend on `rows`.
  // x: rows x_stride elements apart; k even for bf16; tile: kPanelCols wide, rows tile_stride apart.
  void (*panel_f32)(const float* x, int64_t x_stride, int64_t rows, const float* panel, int64_t k, float* tile,
                    int64_t tile_stride);
  void (*panel_bf16)(const BF16* x, int64_t x_stride, int64_t rows, const BF16* panel, int64_t k, float* tile, int64_t tile_stride);

  void (*convert)(const float* x, int64_t n, DType dtype, void* y);
  void (*add)(const float* x, int64_t n, float* y);  // y += x
  void (*silu_mul)(const float* gate, const float* up, int64_t n, DType dtype, void* y);
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, DType dtype, void* y);
  // Half-split rotation of one head: pairs (i, i + half), i < half.
  void (*rotate)(const float* x, const float* cos, const float* sin, int64_t half, DType dtype, void* y);
};

// The best that this machine runs. COPPICE_CPU_ISA = x86_64_v2, avx2, avx512 or avx512_bf16 in the environment lowers the choice
// (tests, bug reports).
const Kernels& SelectKernels();
// All that this machine runs, best first.
std::span<const Kernels* const> SupportedKernels();

namespace x86_64_v2 {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512_bf16 {
extern const Kernels kKernels;
}

}  // namespace coppice::ops
