// Shared memory of the products of few rows, and how much of it decides which CTAs share an SM. Layer: ops/cuda.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "ops/cuda/cuda_weight.h"
#include "ops/cuda/few_rows_params.h"

namespace coppice::ops::cuda::few_rows {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kUnit = kFewRowsUnit, kStripRows = 2 * kUnit;
constexpr int kChunkCols = kWeightChunkCols;
constexpr int kStages = 2;
constexpr int kPieces = kChunkCols / 8;   // 16 bytes each, of a row's chunk
constexpr int kHalves = kChunkCols / 32;  // of a chunk: what four lanes read at once

// A warp's part of a stage. Pieces of odd rows lie half a row further, so that no two lanes of a read meet in a bank.
// kRowTiles: eights of rows of x.
template <int kRowTiles>
struct WarpStage {
  uint4 weight[kStripRows][kPieces];
  uint4 input[kRowTiles][kHalves][32];  // by lane
  __device__ uint4* Weight(int row, int piece) { return &weight[row][piece ^ (row % 2 * (kPieces / 2))]; }
};

// Two CTAs fit an SM, so that the next product's can begin beside this one's.
template <int kRowTiles>
struct SharedStorage {
  static constexpr int kSumBuffers = kRowTiles == 1 ? 2 : 1;  // sums of a strip may be read while the next one's are written
  static constexpr int kSumStride = kStripRows + (kRowTiles == 1 ? 4 : 2);  // few conflicts
  WarpStage<kRowTiles> ring[kStages][kWarps];
  float sums[kSumBuffers][kWarps][kRowTiles * 8][kSumStride];
};

template <class T, int kRowTiles, bool kNorms>
struct Storage : SharedStorage<kRowTiles> {};
template <class T, int kRowTiles>
struct Storage<T, kRowTiles, true> : SharedStorage<kRowTiles> {
  alignas(16) T normed[kMaxNormedElements];  // rows of the weight's stride
  float squares[kWarps];
};

// Of Hopper: 228 KB an SM, of which each CTA takes one besides.
constexpr int kSmBytes = 228 << 10, kCtaBytes = 1 << 10;
// A kernel that is not ours may leave some SMs while it runs on others. After it a CTA of up to eight rows asks for so much that an
// SM has room for one of them, and still for one of the next product's. The larger CTAs of more rows wait until it has ended.
constexpr int kAloneBytes = 114 << 10;
template <class T, int kRowTiles, bool kNorms>
constexpr int kBytes = sizeof(Storage<T, kRowTiles, kNorms>);
static_assert(2 * (kAloneBytes + kCtaBytes) > kSmBytes);
static_assert(kAloneBytes + kBytes<__half, 1, true> + 2 * kCtaBytes <= kSmBytes);
static_assert(2 * (kBytes<__half, 2, false> + kCtaBytes) <= kSmBytes);

}  // namespace coppice::ops::cuda::few_rows
