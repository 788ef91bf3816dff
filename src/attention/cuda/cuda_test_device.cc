#include "attention/cuda/cuda_test_device.h"

#include <cuda_runtime_api.h>

#include "attention/cuda/cuda_backend.h"
#include "attention/cuda/device_memory.h"
#include "core/check.h"

namespace coppice::attention::testing {
namespace {

class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(size_t bytes) : buffer_(std::move(cuda::DeviceBuffer::Allocate(bytes)).value()) {}
  void* data() override { return buffer_.data(); }
  void CopyFrom(std::span<const std::byte> host) override {
    COPPICE_CHECK(cudaMemcpy(buffer_.data(), host.data(), host.size(), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  void CopyTo(std::span<std::byte> host) override {
    COPPICE_CHECK(cudaMemcpy(host.data(), buffer_.data(), host.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
  }

 private:
  cuda::DeviceBuffer buffer_;
};

class CudaTestDevice final : public TestDevice {
 public:
  explicit CudaTestDevice(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}
  Backend& backend() override { return *backend_; }
  std::unique_ptr<DeviceMemory> Allocate(size_t bytes) override { return std::make_unique<CudaMemory>(bytes); }

 private:
  std::unique_ptr<Backend> backend_;
};

}  // namespace

std::unique_ptr<TestDevice> MakeCudaTestDevice(int device) {
  Result<std::unique_ptr<Backend>> backend = MakeCudaBackend(device);
  if (!backend.ok()) return nullptr;
  return std::make_unique<CudaTestDevice>(std::move(backend).value());
}

}  // namespace coppice::attention::testing
