#include "ops/cuda/product_timer.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/math.h"
#include "ops/cuda/launch.cuh"

namespace coppice::ops::cuda {
namespace {

constexpr size_t kMoreThanL2 = size_t{256} << 20;
constexpr int kMaxCopies = 32;
constexpr int kReplays = 4;

template <class T>
__global__ void FillKernel(T* to, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u;  // random numbers, since products of zeros run faster
    h = (h ^ (h >> 15)) * 2246822519u;
    h ^= h >> 13;
    to[i] = FromFloat<T>(static_cast<float>(static_cast<int32_t>(h)) * 0x1p-31f);
  }
}

Status Fill(const DeviceMemory& memory, DType dtype) {
  const LaunchShape shape = {.grid = dim3(1024), .threads = 256};
  const auto count = static_cast<int64_t>(memory.size() / SizeOf(dtype));
  switch (dtype) {
    case DType::kF32: return Launch("filling weights", shape, FillKernel<float>, memory.As<float>(), count);
    case DType::kBF16: return Launch("filling weights", shape, FillKernel<__nv_bfloat16>, memory.As<__nv_bfloat16>(), count);
    case DType::kF16: return Launch("filling weights", shape, FillKernel<__half>, memory.As<__half>(), count);
  }
  return OkStatus();
}

// Events of a scope.
struct Timer {
  cudaEvent_t begin = nullptr, end = nullptr;
  Timer() {
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
  }
  ~Timer() {
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
};

}  // namespace

Result<ProductOperandsMemory> ProductOperandsMemory::Create(Device* device, const Shape& shape) {
  const coppice::cuda::DeviceGuard guard(device->ordinal());
  ProductOperandsMemory memory;
  memory.copy_bytes_ = static_cast<size_t>(RoundUp<int64_t>(shape.n, kWeightTileRows) * shape.stride) * SizeOf(shape.dtype);
  memory.copies_ = static_cast<int>(std::clamp<size_t>(CeilDiv(kMoreThanL2, memory.copy_bytes_), 1, kMaxCopies));
  const int64_t rows = RoundUp<int64_t>(shape.max_rows, kRowPadding);
  COPPICE_ASSIGN_OR_RETURN(memory.weights_, device->Allocate(memory.copies_ * memory.copy_bytes_));
  COPPICE_ASSIGN_OR_RETURN(memory.x_, device->Allocate(static_cast<size_t>(rows * shape.stride) * SizeOf(shape.dtype)));
  COPPICE_ASSIGN_OR_RETURN(memory.y_, device->Allocate(static_cast<size_t>(rows * shape.n) * SizeOf(shape.out_dtype)));
  COPPICE_RETURN_IF_ERROR(Fill(memory.weights_, shape.dtype));
  COPPICE_RETURN_IF_ERROR(Fill(memory.x_, shape.dtype));
  COPPICE_RETURN_IF_ERROR(device->Synchronize(Stream{nullptr}));
  return Result<ProductOperandsMemory>(std::move(memory));
}

Result<double> TimeInGraph(Device* device, int launches, const std::function<Status(int)>& run, cudaStream_t stream) {
  COPPICE_RETURN_IF_ERROR(run(0));
  COPPICE_RETURN_IF_ERROR(device->BeginCapture(stream));
  Status status;
  for (int i = 0; i < launches && status.ok(); ++i) status = run(i);
  Result<std::unique_ptr<Graph>> graph = device->EndCapture(stream);
  COPPICE_RETURN_IF_ERROR(status);
  COPPICE_RETURN_IF_ERROR(graph.status());
  const Timer timer;
  double best = 0;
  for (int replay = 0; replay < kReplays; ++replay) {
    cudaEventRecord(timer.begin, stream);
    COPPICE_RETURN_IF_ERROR(device->Launch(**graph, stream));
    cudaEventRecord(timer.end, stream);
    COPPICE_RETURN_IF_ERROR(coppice::cuda::CudaStatus(cudaEventSynchronize(timer.end), "timing a product"));
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, timer.begin, timer.end);
    const double microseconds = 1e3 * milliseconds / launches;
    if (replay == 1 || (replay > 1 && microseconds < best)) best = microseconds;
  }
  return best;
}

}  // namespace coppice::ops::cuda
