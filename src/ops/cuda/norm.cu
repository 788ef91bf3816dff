#include "ops/cuda/norm.h"

#include <cmath>

#include "core/math.h"
#include "ops/cuda/launch.cuh"

namespace coppice::ops::cuda {
namespace {

constexpr int kMaxThreads = 512;  // more would leave too few registers for what they hold
constexpr int kHeldPacks = 4;     // packs of a row that a thread holds in registers between the passes; it reads the others again

// The sum over the CTA, in every thread; the order of additions depends on the CTA's size alone.
__device__ float SumOverCta(float value) {
  __shared__ float warps[kMaxThreads / 32];
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) sum += warps[warp];
  __syncthreads();  // before the next sum overwrites `warps`
  return sum;
}

constexpr int kRowsInL2 = 1024;  // a model's residual stream is tens of megabytes from here on

template <class Out, int kPack>
__global__ void __launch_bounds__(kMaxThreads) NormKernel(const NormParams p) {
  LetNextStart();
  const int step = blockDim.x * kPack;
  Pack<float, kPack> weights[kHeldPacks];  // no kernel writes them, and reading them takes as long as the norm
#pragma unroll
  for (int i = 0; i < kHeldPacks; ++i) {
    if (const int column = i * step + threadIdx.x * kPack; column < p.cols) weights[i] = LoadPack<kPack>(p.weight + column);
  }
  WaitForPrevious();
  // Few rows are all in the L2, where the other order only waits for the writer's last CTA (0.5 us at 256 rows on an H200).
  const int64_t y_row = gridDim.x < kRowsInL2 ? blockIdx.x : RowOfCta(), row = p.rows == nullptr ? y_row : p.rows[y_row];
  const float* const x = p.x + row * p.x_stride;
  Pack<float, kPack> held[kHeldPacks];
  // visit(pack, weight, column) for all packs of the row that are this thread's.
  const auto for_each_pack = [&](auto visit) {
#pragma unroll
    for (int i = 0; i < kHeldPacks; ++i) {
      if (const int column = i * step + threadIdx.x * kPack; column < p.cols) visit(held[i], weights[i], column);
    }
    for (int column = kHeldPacks * step + threadIdx.x * kPack; column < p.cols; column += step) {
      Pack<float, kPack> again = LoadPack<kPack>(x + column);
      visit(again, LoadPack<kPack>(p.weight + column), column);
    }
  };
#pragma unroll
  for (int i = 0; i < kHeldPacks; ++i) {
    if (const int column = i * step + threadIdx.x * kPack; column < p.cols) held[i] = LoadPack<kPack>(x + column);
  }
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

  Out* const y = static_cast<Out*>(p.y) + y_row * p.y_stride;
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

template <class Out>
Status LaunchFor(const NormParams& p, int64_t num_rows, bool overlaps, cudaStream_t stream) {
  const bool packs = p.cols % 4 == 0 && IsAligned(p.x, p.x_stride, 4, 16) && IsAligned(p.weight, 0, 4, 16) &&
                     IsAligned(p.bias, 0, 4, 16) && IsAligned(p.y, p.y_stride, sizeof(Out), 4 * sizeof(Out));
  const int threads = std::min(kMaxThreads, RoundUp(CeilDiv(p.cols, kHeldPacks * (packs ? 4 : 1)), 32));
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>(num_rows)), .threads = threads, .stream = stream, .overlaps = overlaps};
  return Launch("norm", shape, packs ? NormKernel<Out, 4> : NormKernel<Out, 1>, p);
}

}  // namespace

Status LaunchNorm(const NormParams& params, DType y_dtype, int64_t num_rows, bool overlaps, cudaStream_t stream) {
  switch (y_dtype) {
    case DType::kF32: return LaunchFor<float>(params, num_rows, overlaps, stream);
    case DType::kBF16: return LaunchFor<__nv_bfloat16>(params, num_rows, overlaps, stream);
    case DType::kF16: return LaunchFor<__half>(params, num_rows, overlaps, stream);
  }
  return OkStatus();
}

}  // namespace coppice::ops::cuda
