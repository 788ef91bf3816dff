#include "attention/cuda/cuda_test_device.h"

#include <cuda_runtime_api.h>

#include "attention/cuda/cuda_backend.h"
#include "attention/cuda/device_memory.h"
#include "core/check.h"

namespace coppice::attention::testing {
namespace {

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(int device, size_t bytes) : device_(device) {
    const cuda::DeviceGuard guard(device);
    buffer_ = std::move(cuda::DeviceBuffer::Allocate(bytes)).value();
  }
  void* data() override { return buffer_.data(); }
  // On the device's own default stream, behind what runs there.
  void CopyFrom(std::span<const std::byte> host) override {
    const cuda::DeviceGuard guard(device_);
    COPPICE_CHECK(cudaMemcpy(buffer_.data(), host.data(), host.size(), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  void CopyTo(std::span<std::byte> host) override {
    const cuda::DeviceGuard guard(device_);
    COPPICE_CHECK(cudaMemcpy(host.data(), buffer_.data(), host.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
  }

 private:
  int device_;
  cuda::DeviceBuffer buffer_;
};

class CudaTestDevice final : public TestDevice {
 public:
  CudaTestDevice(int device, std::unique_ptr<Backend> backend) : device_(device), backend_(std::move(backend)) {}
  Backend& backend() override { return *backend_; }
  std::unique_ptr<DeviceMemory> Allocate(size_t bytes) override { return std::make_unique<CudaMemory>(device_, bytes); }

 private:
  int device_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace

std::unique_ptr<TestDevice> MakeCudaTestDevice(int device, CudaKernels kernels) {
  Result<std::unique_ptr<Backend>> backend = MakeCudaBackend(device, kernels);
  if (!backend.ok()) return nullptr;
  return std::make_unique<CudaTestDevice>(device, std::move(backend).value());
}

}  // namespace coppice::attention::testing
