// The kernel of FewRowsProduct. The work is the chunks of all weight tiles in one line, cut into equal runs, one a CTA (stream-K):
// every SM streams the same number of bytes, whatever the shape. Weights go from global memory to registers in the layout of the
// tensor cores' operand, kStages loads ahead, and reach neither shared memory nor L1; a permutation of the inputs, which leaves
// sums over them alone, makes one 16-byte load the operand of two instructions. Partial sums of a tile that several CTAs share are
// added in the order of their inputs by whichever comes last, so results do not depend on timing. Layer: ops/cuda.
#pragma once

#include "ops/cuda/activation.cuh"
#include "ops/cuda/cuda_weight.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/few_rows_params.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"

namespace coppice::ops::cuda {

namespace few_rows {

constexpr int kThreads = 256;
constexpr int kWarpRows = 32;                             // of the weight: two operands of 16
constexpr int kRowGroups = kWeightTileRows / kWarpRows;   // warps side by side in a tile
constexpr int kChunkGroups = kThreads / 32 / kRowGroups;  // warps that take turns at a tile's chunks
constexpr int kTileRows = kWeightTileRows, kChunkCols = kWeightChunkCols;
constexpr int kSumStride = kTileRows + 4;  // sums of a tile in shared memory: stores without conflicts
constexpr int kStages = 4;                 // loads of a warp under way
constexpr int kAheadBytes = 2048;          // of each row, asked for before the kernel may read x

// A CTA's chunks, in the line of all tiles' chunks.
struct Range {
  int32_t begin, end;
  __device__ static Range Of(int cta, int ctas, int64_t total) {
    return {static_cast<int32_t>(cta * total / ctas), static_cast<int32_t>((cta + 1) * total / ctas)};
  }
  __device__ static int CtaAt(int64_t chunk, int ctas, int64_t total) { return static_cast<int>(((chunk + 1) * ctas - 1) / total); }
};

// The part of one tile that a CTA has.
struct Segment {
  int32_t tile, begin, end;  // chunks of the tile
  __device__ static Segment At(const Range& range, int tile, int chunks) {
    const int first = tile * chunks;
    return {tile, max(range.begin - first, 0), min(range.end - first, chunks)};
  }
  // Rounds of the warps that take turns, a multiple of kStages; rounds past the end multiply zeros.
  __device__ int Rounds() const {
    const int rounds = (end - begin + kChunkGroups - 1) / kChunkGroups;
    return (rounds + kStages - 1) / kStages * kStages;
  }
};

// Walks over a warp's rounds in the order in which their loads are issued.
struct Cursor {
  Segment segment;
  int32_t chunk, rounds_left;

  __device__ Cursor(const Segment& first, int chunk_group) { Enter(first, chunk_group); }
  __device__ void Enter(const Segment& next, int chunk_group) {
    segment = next;
    chunk = next.begin + chunk_group;
    rounds_left = next.Rounds();
  }
  __device__ bool IsInside() const { return chunk < segment.end && rounds_left > 0; }
  __device__ void Advance(const Range& range, int chunks, int chunk_group) {
    chunk += kChunkGroups;
    if (--rounds_left > 0 || (segment.tile + 1) * chunks >= range.end) return;
    Enter(Segment::At(range, segment.tile + 1, chunks), chunk_group);
  }
};

struct WeightPart {
  uint4 rows[4];  // of rows g, g + 8, g + 16, g + 24: eight inputs each
};

// g and t: a lane's row and place in it, in the names of the PTX ISA's figures.
template <class T>
__device__ WeightPart LoadWeight(const FewRowsParams& p, int tile, int chunk, int row_group, int g, int t) {
  const T* from = static_cast<const T*>(p.weight) + (int64_t{tile} * kTileRows + row_group * kWarpRows + g) * p.stride +
                  chunk * kChunkCols + t * 8;
  WeightPart part;
#pragma unroll
  for (int i = 0; i < 4; ++i) part.rows[i] = LoadOnce(from + i * 8 * p.stride);
  return part;
}

template <class T>
__device__ uint4 LoadInput(const FewRowsParams& p, int row, int chunk, int t) {
  const int column = chunk * kChunkCols + t * 8;
  if (row >= p.num_rows || column >= p.in_features) return make_uint4(0, 0, 0, 0);
  return *reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + row * p.x_stride + column);
}

// The weight does not depend on the kernel before: what lies behind the first loads comes to L2 while that one ends.
template <class T>
__device__ void PrefetchAhead(const FewRowsParams& p, const Segment& segment) {
#if __CUDA_ARCH__ >= 900
  constexpr int kPieces = kThreads / kTileRows;  // threads a row
  const int row = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
  const int64_t row_begin = (int64_t{segment.tile} * kTileRows + row) * p.stride;
  const char* const weight = static_cast<const char*>(p.weight);
  const int64_t begin =
      (row_begin + int64_t{segment.begin + kStages * kChunkGroups} * kChunkCols) * static_cast<int64_t>(sizeof(T)) +
      piece * (kAheadBytes / kPieces);
  const int64_t end = (row_begin + int64_t{segment.end} * kChunkCols) * static_cast<int64_t>(sizeof(T));
  for (int64_t at = begin; at < min(end, begin + kAheadBytes / kPieces); at += 128) PrefetchL2(weight + at);
#endif
}

template <class T>
__device__ void StoreOutput(const FewRowsParams& p, int row, int column, float value) {
  if (p.y_is_f32) {
    float* const to = static_cast<float*>(p.y) + row * p.y_stride + column;
    *to = p.epilogue.kind == Epilogue::Kind::kAdd ? *to + value : value;
  } else {
    static_cast<T*>(p.y)[row * p.y_stride + column] = FromFloat<T>(value);
  }
}

// sum(row of x, row of the tile): complete sums. The threads share out the tile's outputs.
template <class T, class Sum>
__device__ void StoreTile(const FewRowsParams& p, int tile, Sum sum) {
  const bool gated = p.epilogue.kind == Epilogue::Kind::kGated;
  const int outputs = gated ? kTileRows / 2 : kTileRows;
  const auto biased = [&](int row, int tile_row) {
    return sum(row, tile_row) + (p.bias == nullptr ? 0.0f : p.bias[tile * kTileRows + tile_row]);
  };
  for (int i = threadIdx.x; i < p.num_rows * outputs; i += kThreads) {
    const int row = i / outputs, output = i % outputs, column = tile * outputs + output;
    if (column >= p.out_features) continue;
    if (gated) {
      const int gate = output / kGateGroup * 2 * kGateGroup + output % kGateGroup;
      StoreOutput<T>(p, row, column, Activate(p.epilogue.activation, biased(row, gate)) * biased(row, gate + kGateGroup));
    } else {
      const float value = biased(row, output);
      StoreOutput<T>(p, row, column, p.epilogue.kind == Epilogue::Kind::kActivate ? Activate(p.epilogue.activation, value) : value);
    }
  }
}

// Where a CTA leaves its sums of a tile that it shares: a tile begun by another CTA comes first in its range.
__device__ inline float* PartialsOf(const FewRowsParams& p, int cta, bool is_first) {
  return p.partials + (cta * 2 + (is_first ? 0 : 1)) * (kMaxFewRows * kTileRows);
}

// Adds up a segment's sums, which lie in shared memory by chunk group, and stores the tile if it is complete.
template <class T, int kRowTiles>
__device__ void FinishSegment(const FewRowsParams& p, const Segment& segment,
                              const float (&sums)[kChunkGroups][kRowTiles * 8][kSumStride]) {
  const auto own = [&](int row, int tile_row) {
    float sum = 0;
#pragma unroll
    for (int group = 0; group < kChunkGroups; ++group) sum += sums[group][row][tile_row];
    return sum;
  };
  if (segment.begin == 0 && segment.end == p.chunks) {
    StoreTile<T>(p, segment.tile, own);
    return;
  }
  float* const partial = PartialsOf(p, blockIdx.x, segment.begin > 0);
  for (int i = threadIdx.x; i < p.num_rows * kTileRows; i += kThreads) partial[i] = own(i / kTileRows, i % kTileRows);
  const int ctas = gridDim.x;
  const int64_t total = int64_t{p.tiles} * p.chunks, first = int64_t{segment.tile} * p.chunks;
  const int first_cta = Range::CtaAt(first, ctas, total), last_cta = Range::CtaAt(first + p.chunks - 1, ctas, total);
  __shared__ bool is_last;
  __threadfence();  // the partial sums are seen by whoever sees the ticket
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(&p.tickets[segment.tile], 1) == last_cta - first_cta;
    if (is_last) p.tickets[segment.tile] = 0;  // for the next product
    __threadfence();                           // the others' sums are read after their tickets
  }
  __syncthreads();
  if (!is_last) return;
  StoreTile<T>(p, segment.tile, [&](int row, int tile_row) {
    float sum = 0;
    for (int cta = first_cta; cta <= last_cta; ++cta) {
      sum += __ldcg(PartialsOf(p, cta, Range::Of(cta, ctas, total).begin > first) + row * kTileRows + tile_row);
    }
    return sum;
  });
}

// kRowTiles: eights of rows of x.
template <class T, int kRowTiles>
__global__ void __launch_bounds__(kThreads, 2) Kernel(const FewRowsParams p) {
  LetNextStart();
  __shared__ float sums[kChunkGroups][kRowTiles * 8][kSumStride];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row_group = warp % kRowGroups, chunk_group = warp / kRowGroups;
  const Range range = Range::Of(blockIdx.x, gridDim.x, int64_t{p.tiles} * p.chunks);
  const int first_tile = range.begin / p.chunks;

  WeightPart weight[kStages];
  const Segment first = Segment::At(range, first_tile, p.chunks);
  Cursor ahead(first, chunk_group);
  const auto load_next = [&](WeightPart& part) {
    part = ahead.IsInside() ? LoadWeight<T>(p, ahead.segment.tile, ahead.chunk, row_group, g, t) : WeightPart{};
    ahead.Advance(range, p.chunks, chunk_group);
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) load_next(weight[stage]);
  PrefetchAhead<T>(p, first);
  WaitForPrevious();  // below, x and y are touched

  for (int tile = first_tile; tile * p.chunks < range.end; ++tile) {
    const Segment segment = Segment::At(range, tile, p.chunks);
    float sum[2][kRowTiles][4] = {};
    int chunk = segment.begin + chunk_group;
    for (int round = segment.Rounds(); round > 0; round -= kStages) {
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage, chunk += kChunkGroups) {
        const WeightPart& w = weight[stage];
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          const uint4 v = LoadInput<T>(p, i * 8 + g, chunk, t);  // from L1, all but the first time
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint4 &upper = w.rows[2 * half], &lower = w.rows[2 * half + 1];
            MultiplyAdd<T>(sum[half][i], {upper.x, lower.x, upper.y, lower.y}, {v.x, v.y});
            MultiplyAdd<T>(sum[half][i], {upper.z, lower.z, upper.w, lower.w}, {v.z, v.w});
          }
        }
        load_next(weight[stage]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[chunk_group][i * 8 + 2 * t + e % 2][row_group * kWarpRows + half * 16 + g + e / 2 * 8] = sum[half][i][e];
        }
      }
    }
    __syncthreads();  // all warps' sums are there
    FinishSegment<T, kRowTiles>(p, segment, sums);
    __syncthreads();  // and may be overwritten
  }
}

}  // namespace few_rows

template <class T>
Status LaunchFewRows(const FewRowsParams& params, int num_ctas, bool overlaps, cudaStream_t stream) {
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>(num_ctas)), .threads = few_rows::kThreads, .stream = stream, .overlaps = overlaps};
  return Launch("a product of few rows", shape, params.num_rows <= 8 ? few_rows::Kernel<T, 1> : few_rows::Kernel<T, 2>, params);
}

}  // namespace coppice::ops::cuda
