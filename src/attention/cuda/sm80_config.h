// Sizes of the mma.sync kernel: tiles, stages, registers, shared memory, with where each number comes from; docs/kernels/sm80.md.
// Layer: attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/kernel_params.h"
#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/plan_device.h"

namespace coppice::attention::cuda {

template <class Element_, int kHeadDim_>
struct Sm80Config {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;  // after padding
  static constexpr bool kDelays = false;      // see StressConfig

  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  // Sixteen rows a warp. Half a dense task: tickets are drawn per 64 rows (plan_device.h), and 64 rows of output at head_dim 256
  // fill half of the registers that a thread may have.
  static constexpr int kRows = kWarps * 16;
  static_assert(kDenseRows % kRows == 0);
  // 16 KB of K and V a tile: with two tiles and Q two CTAs fit an SM of 164 KB and one an SM of 100 KB at any head_dim. At 256, 32
  // tokens would not fit the registers beside the output.
  static constexpr int kKvTile = MmaSyncKvTile(kHeadDim);
  static constexpr int kStages = 2;
  // 65536 registers over 128 threads: 168 each for three CTAs, 255 for two. Head_dim 128 would spill 8 of 168.
  static constexpr int kCtasPerSm = kHeadDim == 64 ? 3 : 2;

  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kTileBytes = kKvTile * kRowBytes;  // K or V
  static constexpr int kOut = kHeadDim / 2;               // registers of output
  // Deterministic mode: output and (m, l) of a thread's two rows; a CTA keeps a unit's, a superblock's and a row's.
  static constexpr int kStateFloats = (kOut + 4) * kThreads, kKeptStates = 3;
  static constexpr int kFoldBytesPerCta = kKeptStates * kStateFloats * static_cast<int>(sizeof(float));
};

struct Sm80Params {
  KernelParams plan;
  const void *k, *v;
  int64_t page_stride, head_stride, slot_stride;  // elements
  float* folds;                                   // deterministic mode: kFoldBytesPerCta for each CTA; otherwise null
};

}  // namespace coppice::attention::cuda
