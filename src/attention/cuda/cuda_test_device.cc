#include "attention/cuda/cuda_test_device.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "attention/cuda/cuda_backend.h"
#include "attention/cuda/device_memory.h"
#include "attention/cuda/lower/plan_translator.h"
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

// An H200, or one whose side tiles cost nothing, nor what would hide their gain in a short step.
MachineModel WithSideTiles(bool side_tiles) {
  MachineModel machine = ShippedMachineModel("h200").value();
  if (side_tiles) {
    machine.sm.side_step_ns = machine.sm.side_task_ns = machine.sm.dense_task_ns = machine.sm.launch_ns = 1e-3;
    machine.sm.dense_task_with_side_ns = machine.sm.slowed_by_side = 0;
  }
  return machine;
}

}  // namespace

std::unique_ptr<TestDevice> MakeCudaTestDevice(int device, CudaKernels kernels, int most_sms, bool side_tiles) {
  const MachineModel machine = WithSideTiles(side_tiles);
  Result<std::unique_ptr<Backend>> backend = MakeCudaBackend(device, kernels, most_sms, side_tiles ? &machine : nullptr);
  if (!backend.ok()) return nullptr;
  return std::make_unique<CudaTestDevice>(device, std::move(backend).value());
}

DeviceTasks TasksOf(AttentionCase& test, const HandPlan& plan, int num_sms, bool side_tiles) {
  const SmRates rates = WithSideTiles(side_tiles).sm;
  cuda::PlanTranslator translator(test.spec(), test.forest().Capacity(), plan.Sizes(), rates, num_sms, /*kv_tile=*/128);
  translator.TranslatePlan(plan.View(), test.forest().View());
  return {.team = translator.team(),
          .side = translator.side(),
          .dense = translator.num_dense_tasks(),
          .stream = translator.num_stream_tasks()};
}

}  // namespace coppice::attention::testing
