#include "ops/cuda/rows.h"

#include "core/math.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/launch.cuh"

namespace coppice::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Neighbouring threads store 16 bytes of fp32 each, so that a warp's stores are whole runs of memory, and have kEmbedPacks reads in
// flight.
constexpr int kEmbedCols = 4, kEmbedPacks = 4;

struct EmbedParams {
  const int32_t* token_ids;
  const void* table;
  int64_t table_stride;
  int32_t first_id, rows;  // of the table
  float scale;
  bool add;
  float* y;
  int64_t y_stride;
  int32_t cols;
};

template <class T, int kCols>
__global__ void __launch_bounds__(kThreads) EmbedKernel(const EmbedParams p) {
  LetNextStart();
  WaitForPrevious();
  const int32_t row = p.token_ids[blockIdx.x] - p.first_id;
  const bool is_held = row >= 0 && row < p.rows;
  const T* const from = static_cast<const T*>(p.table) + (is_held ? row : 0) * p.table_stride;
  float* const to = p.y + blockIdx.x * p.y_stride;
  const int begin = (blockIdx.y * kEmbedPacks * kThreads + threadIdx.x) * kCols;
  Pack<T, kCols> packs[kEmbedPacks];
#pragma unroll
  for (int i = 0; i < kEmbedPacks; ++i) {
    if (const int column = begin + i * kThreads * kCols; column < p.cols) packs[i] = LoadPack<kCols>(from + column);
  }
#pragma unroll
  for (int i = 0; i < kEmbedPacks; ++i) {
    const int column = begin + i * kThreads * kCols;
    if (column >= p.cols) return;
    Pack<float, kCols> out{};
    if (p.add) out = LoadPack<kCols>(to + column);
    for (int j = 0; j < kCols; ++j) {
      const float value = is_held ? ToFloat(packs[i].values[j]) : 0.0f;
      out.values[j] = p.add ? fmaf(p.scale, value, out.values[j]) : p.scale * value;
    }
    StorePack(to + column, out);
  }
}

__global__ void __launch_bounds__(kThreads) FillKernel(float* x, int64_t count, float value) {
  LetNextStart();
  WaitForPrevious();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) x[i] = value;
}

// Strides and columns in words.
struct GatherParams {
  const void* x;
  int64_t x_stride;
  const int32_t* rows;
  void* y;
  int64_t y_stride;
  int32_t cols;
};

template <class Word>
__global__ void __launch_bounds__(kThreads) GatherKernel(const GatherParams p) {
  LetNextStart();
  WaitForPrevious();
  const int column = blockIdx.y * kThreads + threadIdx.x;
  if (column >= p.cols) return;
  const Word* const from = static_cast<const Word*>(p.x) + p.rows[blockIdx.x] * p.x_stride;
  static_cast<Word*>(p.y)[blockIdx.x * p.y_stride + column] = from[column];
}

struct FinishParams {
  const float* bias;
  Activation activation;
  bool activates;
  void* y;
  int64_t y_stride;
  int32_t cols;
};

template <class T>
__global__ void __launch_bounds__(kThreads) FinishKernel(const FinishParams p) {
  LetNextStart();
  WaitForPrevious();
  const int column = blockIdx.y * kThreads + threadIdx.x;
  if (column >= p.cols) return;
  T* const y = static_cast<T*>(p.y) + blockIdx.x * p.y_stride + column;
  const float value = ToFloat(*y) + (p.bias == nullptr ? 0.0f : p.bias[column]);
  *y = FromFloat<T>(p.activates ? Activate(p.activation, value) : value);
}

struct GateParams {
  const void* gate_up;
  int64_t gate_up_stride;
  const float* bias;
  Activation activation;
  void* y;
  int64_t y_stride;
  int32_t cols;
};

// A thread a group of kGateGroup outputs.
template <class From, class To, bool kPacks>
__global__ void __launch_bounds__(kThreads) GateKernel(const GateParams p) {
  LetNextStart();
  WaitForPrevious();
  const int group = blockIdx.y * kThreads + threadIdx.x, column = group * kGateGroup;
  if (column >= p.cols) return;
  const From* const from = static_cast<const From*>(p.gate_up) + blockIdx.x * p.gate_up_stride + 2 * column;
  To* const to = static_cast<To*>(p.y) + blockIdx.x * p.y_stride + column;
  const auto gate = LoadPack<kGateGroup>(from), up = LoadPack<kGateGroup>(from + kGateGroup);
  Pack<To, kGateGroup> out;
  for (int i = 0; i < kGateGroup; ++i) {
    const float* const bias = p.bias == nullptr ? nullptr : p.bias + 2 * column + i;
    const float g = ToFloat(gate.values[i]) + (bias == nullptr ? 0.0f : bias[0]);
    const float u = ToFloat(up.values[i]) + (bias == nullptr ? 0.0f : bias[kGateGroup]);
    out.values[i] = FromFloat<To>(Activate(p.activation, g) * u);
  }
  if (kPacks && column + kGateGroup <= p.cols) {
    StorePack(to, out);
  } else {
    for (int i = 0; i < kGateGroup && column + i < p.cols; ++i) to[i] = out.values[i];
  }
}

LaunchShape ShapeOf(int64_t rows, int64_t per_row, bool overlaps, cudaStream_t stream) {
  return {.grid = dim3(static_cast<unsigned>(rows), static_cast<unsigned>(CeilDiv<int64_t>(per_row, kThreads))),
          .threads = kThreads,
          .stream = stream,
          .overlaps = overlaps};
}

template <class T>
Status EmbedFor(const EmbedParams& p, int64_t rows, bool overlaps, cudaStream_t stream) {
  const bool packs = p.cols % kEmbedCols == 0 && IsAligned(p.table, p.table_stride, sizeof(T), kEmbedCols * sizeof(T)) &&
                     IsAligned(p.y, p.y_stride, 4, 16);
  return Launch("embedding", ShapeOf(rows, CeilDiv(packs ? p.cols / kEmbedCols : p.cols, kEmbedPacks), overlaps, stream),
                packs ? EmbedKernel<T, kEmbedCols> : EmbedKernel<T, 1>, p);
}

template <class From, class To>
Status GateFor(const GateParams& p, int64_t rows, bool overlaps, cudaStream_t stream) {
  return Launch("gated activation", ShapeOf(rows, CeilDiv<int64_t>(p.cols, kGateGroup), overlaps, stream),
                IsAligned(p.y, p.y_stride, sizeof(To), 16) ? GateKernel<From, To, true> : GateKernel<From, To, false>, p);
}

}  // namespace

Status LaunchEmbed(DeviceSpan<const int32_t> token_ids, const CudaWeight& table, const EmbedArgs& args, const DeviceTensor& y,
                   bool overlaps, cudaStream_t stream) {
  const EmbedParams params = {.token_ids = token_ids.data,
                              .table = table.data(),
                              .table_stride = table.stride(),
                              .first_id = args.first_id,
                              .rows = static_cast<int32_t>(table.out_features()),
                              .scale = args.scale,
                              .add = args.add,
                              .y = static_cast<float*>(y.data),
                              .y_stride = y.stride,
                              .cols = static_cast<int32_t>(table.in_features())};
  switch (table.dtype()) {
    case DType::kF32: return EmbedFor<float>(params, token_ids.size, overlaps, stream);
    case DType::kBF16: return EmbedFor<__nv_bfloat16>(params, token_ids.size, overlaps, stream);
    case DType::kF16: return EmbedFor<__half>(params, token_ids.size, overlaps, stream);
  }
  return OkStatus();
}

Status LaunchFill(float* x, int64_t count, float value, bool overlaps, cudaStream_t stream) {
  if (count == 0) return OkStatus();
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(CeilDiv(count, int64_t{kThreads}))),
                             .threads = kThreads,
                             .stream = stream,
                             .overlaps = overlaps};
  return Launch("filling", shape, FillKernel, x, count, value);
}

Status LaunchGather(const ConstDeviceTensor& x, DeviceSpan<const int32_t> rows, const DeviceTensor& y, bool overlaps,
                    cudaStream_t stream) {
  const auto size = static_cast<int64_t>(SizeOf(x.dtype));
  const auto launch = [&]<class Word>(const Word*) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(Word));
    const GatherParams params = {.x = x.data,
                                 .x_stride = x.stride * size / kBytes,
                                 .rows = rows.data,
                                 .y = y.data,
                                 .y_stride = y.stride * size / kBytes,
                                 .cols = static_cast<int32_t>(x.cols * size / kBytes)};
    return Launch("gathering rows", ShapeOf(rows.size, params.cols, overlaps, stream), GatherKernel<Word>, params);
  };
  const bool packs = x.cols * size % 16 == 0 && IsAligned(x.data, x.stride, SizeOf(x.dtype), 16) &&
                     IsAligned(y.data, y.stride, SizeOf(y.dtype), 16);
  if (packs) return launch(static_cast<const uint4*>(nullptr));
  return size == 4 ? launch(static_cast<const uint32_t*>(nullptr)) : launch(static_cast<const uint16_t*>(nullptr));
}

Status LaunchFinish(const FinishArgs& args, const DeviceTensor& y, bool overlaps, cudaStream_t stream) {
  const FinishParams params = {.bias = args.bias,
                               .activation = args.activation == nullptr ? Activation::kSilu : *args.activation,
                               .activates = args.activation != nullptr,
                               .y = y.data,
                               .y_stride = y.stride,
                               .cols = static_cast<int32_t>(y.cols)};
  const LaunchShape shape = ShapeOf(y.rows, y.cols, overlaps, stream);
  switch (y.dtype) {
    case DType::kF32: return Launch("bias and activation", shape, FinishKernel<float>, params);
    case DType::kBF16: return Launch("bias and activation", shape, FinishKernel<__nv_bfloat16>, params);
    case DType::kF16: return Launch("bias and activation", shape, FinishKernel<__half>, params);
  }
  return OkStatus();
}

Status LaunchGate(const ConstDeviceTensor& gate_up, const float* bias, Activation activation, const DeviceTensor& y, bool overlaps,
                  cudaStream_t stream) {
  const GateParams params = {.gate_up = gate_up.data,
                             .gate_up_stride = gate_up.stride,
                             .bias = bias,
                             .activation = activation,
                             .y = y.data,
                             .y_stride = y.stride,
                             .cols = static_cast<int32_t>(y.cols)};
  const bool narrow = y.dtype != DType::kF32;
  switch (gate_up.dtype) {
    case DType::kF32: return GateFor<float, float>(params, y.rows, overlaps, stream);
    case DType::kBF16:
      return narrow ? GateFor<__nv_bfloat16, __nv_bfloat16>(params, y.rows, overlaps, stream)
                    : GateFor<__nv_bfloat16, float>(params, y.rows, overlaps, stream);
    case DType::kF16:
      return narrow ? GateFor<__half, __half>(params, y.rows, overlaps, stream)
                    : GateFor<__half, float>(params, y.rows, overlaps, stream);
  }
  return OkStatus();
}

}  // namespace coppice::ops::cuda
