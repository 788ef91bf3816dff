// A row that a CTA normalises, for the kernels that do. Layer: ops/cuda.
#pragma once

#include <cstdint>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/norm.h"

namespace coppice::ops::cuda {

inline constexpr int kMaxNormThreads = 512;  // more would leave too few registers for what they hold
inline constexpr int kHeldPacks =
    4;  // packs of a row that a thread holds in registers between the passes; it reads the others again

// The sum over the CTA, in every thread; the order of additions depends on the CTA's size alone.
__device__ inline float SumOverCta(float value) {
  __shared__ float warps[kMaxNormThreads / 32];
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) sum += warps[warp];
  __syncthreads();  // before the next sum overwrites `warps`
  return sum;
}

// A thread's packs of a row and of the norm's weights.
template <int kPack>
struct NormRow {
  Pack<float, kPack> held[kHeldPacks], weights[kHeldPacks];

  // visit(i, column) for the packs that are held.
  template <class Visit>
  __device__ static void ForEachHeld(int cols, Visit visit) {
    const int step = blockDim.x * kPack;
#pragma unroll
    for (int i = 0; i < kHeldPacks; ++i) {
      if (const int column = i * step + threadIdx.x * kPack; column < cols) visit(i, column);
    }
  }
  // visit(column) for the others.
  template <class Visit>
  __device__ static void ForEachOther(int cols, Visit visit) {
    const int step = blockDim.x * kPack;
    for (int column = kHeldPacks * step + threadIdx.x * kPack; column < cols; column += step) visit(column);
  }

  __device__ void LoadWeights(const NormParams& p) {
    ForEachHeld(p.cols, [&](int i, int column) { weights[i] = LoadPack<kPack>(p.weight + column); });
  }
  // y = the norm of the row at `x`, of which `held` has what is held.
  template <class Out>
  __device__ void Normalize(const NormParams& p, const float* x, Out* y) {
    // visit(pack, weight, column)
    const auto for_each_pack = [&](auto visit) {
      ForEachHeld(p.cols, [&](int i, int column) { visit(held[i], weights[i], column); });
      ForEachOther(p.cols, [&](int column) { visit(LoadPack<kPack>(x + column), LoadPack<kPack>(p.weight + column), column); });
    };
    float mean = 0;
    if (p.kind == NormKind::kLayer) {
      float sum = 0;
      for_each_pack([&](const auto& pack, const auto&, int) {
        for (const float value : pack.values) sum += value;
      });
      mean = SumOverCta(sum) / static_cast<float>(p.cols);
    }
    float squares = 0;
    for_each_pack([&](const auto& pack, const auto&, int) {
      for (const float value : pack.values) squares += (value - mean) * (value - mean);
    });
    const float scale = 1.0f / sqrtf(SumOverCta(squares) / static_cast<float>(p.cols) + p.eps);
    for_each_pack([&](const auto& pack, const auto& weight, int column) {
      Pack<float, kPack> bias{};
      if (p.bias != nullptr) bias = LoadPack<kPack>(p.bias + column);
      Pack<Out, kPack> out{};
      if (p.adds) out = LoadPack<kPack>(y + column);
      for (int i = 0; i < kPack; ++i) {
        const float value = (pack.values[i] - mean) * scale * weight.values[i] + bias.values[i];
        out.values[i] = FromFloat<Out>(p.adds ? ToFloat(out.values[i]) + value : value);
      }
      StorePack(y + column, out);
    });
  }
};

}  // namespace coppice::ops::cuda
