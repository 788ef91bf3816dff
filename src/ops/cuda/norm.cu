#include "ops/cuda/norm.h"

#include <cmath>

#include "core/math.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/norm_row.cuh"

namespace coppice::ops::cuda {
namespace {

constexpr int kRowsInL2 = 1024;  // a model's residual stream is tens of megabytes from here on

template <class Out, int kPack>
__global__ void __launch_bounds__(kMaxNormThreads, 2) NormKernel(const NormParams p) {
  LetNextStart();
  NormRow<kPack> held;
  held.LoadWeights(p);  // no kernel writes them, and reading them takes as long as the norm
  WaitForPrevious();
  // Few rows are all in the L2, where the other order only waits for the writer's last CTA (0.5 us at 256 rows on an H200).
  const int64_t y_row = gridDim.x < kRowsInL2 ? blockIdx.x : RowOfCta(), row = p.rows == nullptr ? y_row : p.rows[y_row];
  const float* const x = p.x + row * p.x_stride;
  held.ForEachHeld(p.cols, [&](int i, int column) { held.held[i] = LoadPack<kPack>(x + column); });
  held.Normalize(p, x, static_cast<Out*>(p.y) + y_row * p.y_stride);
}

template <class Out>
Status LaunchFor(const NormParams& p, int64_t num_rows, bool overlaps, cudaStream_t stream) {
  const bool packs = p.cols % 4 == 0 && IsAligned(p.x, p.x_stride, 4, 16) && IsAligned(p.weight, 0, 4, 16) &&
                     IsAligned(p.bias, 0, 4, 16) && IsAligned(p.y, p.y_stride, sizeof(Out), 4 * sizeof(Out));
  const int threads = std::min(kMaxNormThreads, RoundUp(CeilDiv(p.cols, kHeldPacks * (packs ? 4 : 1)), 32));
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
