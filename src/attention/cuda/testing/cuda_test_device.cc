#include "attention/cuda/testing/cuda_test_device.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "attention/cuda/cuda_backend.h"
#include "attention/cuda/device_memory.h"
#include "attention/cuda/lower/kernel_choice.h"
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

// An H200, or one where overlapped tiles cost nothing and stream warps much, so that even short steps have overlapped tiles.
MachineModel WithOverlappedTiles(bool overlapped_tiles) {
  MachineModel machine = ShippedMachineModel("h200").value();
  if (overlapped_tiles) {
    SmRates& rates = machine.sm;
    rates.overlapped_step_ns = rates.overlapped_task_ns = rates.dense_task_ns = rates.launch_ns = 1e-3;
    rates.dense_task_overlapped_ns = rates.slowed_by_overlap = 0;
    rates.memory_bytes_per_s *= 100, rates.stream_step_ns *= 100;
  }
  return machine;
}

}  // namespace

std::unique_ptr<TestDevice> MakeCudaTestDevice(int device, CudaKernels kernels, int most_sms, bool overlapped_tiles) {
  const MachineModel machine = WithOverlappedTiles(overlapped_tiles);
  Result<std::unique_ptr<Backend>> backend = MakeCudaBackend(device, kernels, most_sms, overlapped_tiles ? &machine : nullptr);
  if (!backend.ok()) return nullptr;
  return std::make_unique<CudaTestDevice>(device, std::move(backend).value());
}

DeviceTasks TasksOf(AttentionCase& test, const HandPlan& plan, int num_sms, bool overlapped_tiles) {
  const SmRates rates = WithOverlappedTiles(overlapped_tiles).sm;
  const PlanCapacity capacity = test.forest().Capacity();
  const cuda::KernelChoice kernel = cuda::ChooseKernel(CudaKernels::kHopper, 9, 0, test.spec(), capacity.page_size).value();
  cuda::PlanTranslator translator(test.spec(), capacity, plan.Sizes(), rates, cuda::TraitsOf(kernel, test.spec(), num_sms));
  translator.TranslatePlan(plan.View(), test.forest().View());
  return {.cooperative = translator.cooperative(),
          .overlapped = translator.overlapped(),
          .dense = translator.num_dense_tasks(),
          .stream = translator.num_stream_tasks()};
}

std::unique_ptr<AttentionCase> CaseWithOverlappedTiles(TestDevice& device) {
  constexpr int32_t kRequests = 100, kPrefix = 2048, kMostOwn = 300;
  CaseOptions options;
  options.spec = {.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  options.forest = {.max_branches = kRequests, .max_kv_len = kPrefix + kMostOwn, .start_empty = true};
  auto test = std::make_unique<AttentionCase>(device, options);
  const int32_t first = test->forest().AddRoot(kPrefix + kMostOwn / 2);
  for (int32_t i = 1; i < kRequests; ++i) test->forest().Fork(first, kPrefix, 1 + i * 7 % kMostOwn);
  test->forest().SetQueries(std::vector<int32_t>(kRequests, 1));
  test->Refresh();
  return test;
}

}  // namespace coppice::attention::testing
