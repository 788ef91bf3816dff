// Parameters of GatedProduct's kernel. Layer: ops/cuda.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "coppice/core/status.h"

namespace coppice::ops::cuda::gated {

// A cluster of CTAs computes a tile: each CTA rows of its own of the weight, all of them the same rows of x.
inline constexpr int kCtas = 2;
inline constexpr int kWarpgroups = 2;  // of a CTA, that multiply
inline constexpr int kTileRows = 128;  // of the weight, a CTA
inline constexpr int kChunkCols = 64;  // inputs of a step: a line of 128 bytes, the width of the swizzle
inline constexpr int kMaxXRows = 256;  // of a tile
inline constexpr int kGatedCols = 32;  // outputs of a warpgroup's 64 rows of gates and ups
// Sums of a CTA that another adds, fp32.
inline constexpr size_t kPartialBytes = size_t{kTileRows} * kMaxXRows * sizeof(float);

struct Params {
  CUtensorMap weight, x, y;
  int32_t num_clusters;
  int32_t x_blocks, weight_tiles;  // num_tiles is their product
  int32_t group_blocks;            // x blocks whose tiles follow each other (Corner)
  int32_t num_tiles, chunks;
  int32_t whole_waves;  // tiles that a cluster has alone; the steps of the others are cut into equal ranges
  bool is_gelu;         // tanh's form; else SiLU
  float4* partials;     // [cluster][CTA][warpgroup][float4 of a thread][thread]
  uint32_t* flags;      // [cluster][CTA][warpgroup]: 1 while partials are there to be added; 0 between launches
};

// Called once on a device before its first launch: the clusters that run at once.
Result<int32_t> PrepareBf16();
Result<int32_t> PrepareF16();
// One small file each, so that they compile in parallel. x_rows: of a tile, 64, 128, 192 or 256.
Status LaunchBf16(const Params& params, int x_rows, cudaStream_t stream);
Status LaunchF16(const Params& params, int x_rows, cudaStream_t stream);

}  // namespace coppice::ops::cuda::gated
