// Owning CUDA memory, events and error reports: the only place of this backend that allocates. Layer: attention/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <utility>

#include "coppice/core/status.h"
#include "core/cuda/cuda_status.h"

namespace coppice::attention::cuda {

using coppice::cuda::CudaStatus;
using coppice::cuda::DeviceGuard;

enum class MemoryKind { kDevice, kPinnedHost };

// Zero-filled memory on the current device, or page-locked host memory. Movable, not copyable.
template <MemoryKind kKind>
class CudaBuffer {
 public:
  CudaBuffer() = default;
  static Result<CudaBuffer> Allocate(size_t bytes) {
    CudaBuffer buffer;
    if (bytes == 0) return Result<CudaBuffer>(std::move(buffer));
    const cudaError_t error =
        kKind == MemoryKind::kDevice ? cudaMalloc(&buffer.data_, bytes) : cudaHostAlloc(&buffer.data_, bytes, cudaHostAllocDefault);
    if (error != cudaSuccess) {
      cudaGetLastError();  // an allocation that failed leaves the context usable
      const char* what = kKind == MemoryKind::kDevice ? "device" : "page-locked host";
      return CudaStatus(error, (std::string("allocating ") + std::to_string(bytes) + " bytes of " + what + " memory").c_str());
    }
    buffer.size_ = bytes;
    if (kKind == MemoryKind::kDevice) {
      if (const cudaError_t zero = cudaMemset(buffer.data_, 0, bytes); zero != cudaSuccess) return CudaStatus(zero, "cudaMemset");
      if (const cudaError_t done = cudaDeviceSynchronize(); done != cudaSuccess) return CudaStatus(done, "cudaDeviceSynchronize");
    }
    return Result<CudaBuffer>(std::move(buffer));
  }
  ~CudaBuffer() {
    if (data_ == nullptr) return;
    kKind == MemoryKind::kDevice ? cudaFree(data_) : cudaFreeHost(data_);
  }
  CudaBuffer(CudaBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  CudaBuffer& operator=(CudaBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};
using DeviceBuffer = CudaBuffer<MemoryKind::kDevice>;
using PinnedBuffer = CudaBuffer<MemoryKind::kPinnedHost>;

// An event without timing.
class CudaEvent {
 public:
  static Result<CudaEvent> Create() {
    CudaEvent event;
    const cudaError_t error = cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming);
    if (error != cudaSuccess) return CudaStatus(error, "cudaEventCreate");
    return Result<CudaEvent>(std::move(event));
  }
  CudaEvent() = default;
  ~CudaEvent() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace coppice::attention::cuda
