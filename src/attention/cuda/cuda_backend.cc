#include "attention/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <utility>

#include "attention/argument_checks.h"
#include "attention/cuda/device_memory.h"
#include "attention/cuda/device_rates.h"
#include "attention/cuda/kernel_config.h"
#include "attention/cuda/kernel_variants.h"
#include "attention/cuda/kernels/short_decode.h"
#include "attention/cuda/kv_ops.h"
#include "attention/cuda/lower/device_machine.h"
#include "attention/cuda/plan_executor.h"
#include "attention/cuda/tensor_map.h"
#include "attention/forest.h"
#include "attention/plan.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

using namespace cuda;

Result<MachineModel> MachineModelOf(int device, const cudaDeviceProp& properties) {
  if (const char* measured = MeasuredMachine(properties.name); measured != nullptr) return ShippedMachineModel(measured);
  COPPICE_ASSIGN_OR_RETURN(const DeviceRates rates, RatesOf(device));
  return ScaledMachine({.name = properties.name, .num_sms = properties.multiProcessorCount, .l2_bytes = properties.l2CacheSize},
                       rates);
}

// The alignment that cp.async of 16 bytes needs.
Status CheckAlignment(const KvLayerView& view) {
  const bool aligned = reinterpret_cast<uintptr_t>(view.k) % 16 == 0 && reinterpret_cast<uintptr_t>(view.v) % 16 == 0;
  if (aligned && view.page_stride % 8 == 0 && view.head_stride % 8 == 0 && view.slot_stride % 8 == 0) return OkStatus();
  return Unimplemented("KV layer: page_stride = " + std::to_string(view.page_stride) + ", head_stride = " +
                       std::to_string(view.head_stride) + ", slot_stride = " + std::to_string(view.slot_stride) +
                       " elements; the CUDA backend expects multiples of 8, and k and v aligned to 16 bytes");
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, const cudaDeviceProp& properties, CudaKernels kernels, int most_sms, MachineModel machine)
      : device_(device),
        num_sms_(std::min(properties.multiProcessorCount, most_sms)),
        major_(properties.major),
        minor_(properties.minor),
        kernels_(kernels),
        machine_(std::move(machine)) {}

  DeviceKind device() const override { return DeviceKind::kCuda; }
  const MachineModel& machine() const override { return machine_; }
  std::string MachineNote() const override {
    if (machine_.scaled_from.empty()) return "";
    return machine_.name + ": attention is planned by rates scaled from " + machine_.scaled_from +
           ", not measured on such a device; `coppice bench calibrate --device cuda` measures them";
  }

  Result<BackendTraits> Traits(const AttentionSpec& spec, const PlanCapacity& capacity) const override {
    COPPICE_ASSIGN_OR_RETURN(const KernelChoice kernel, ChooseKernel(kernels_, major_, minor_, spec, capacity.page_size));
    DeviceGuard guard(device_);
    return WithShortSteps(TraitsOf(kernel, spec, num_sms_), ShortDecodeFunctionsOf(kernel.path, spec, capacity, num_sms_));
  }

  Result<PlanSizes> Sizes(const AttentionSpec& spec, const PlanCapacity& capacity) const override {
    COPPICE_ASSIGN_OR_RETURN(const PlanCapacity resolved, ResolveCapacity(spec, capacity));
    COPPICE_ASSIGN_OR_RETURN(const BackendTraits traits, Traits(spec, resolved));
    COPPICE_ASSIGN_OR_RETURN(const KernelVariant* kernel, Kernel(spec, resolved.page_size));
    PlanSizes sizes = ComputePlanSizes(spec, resolved, traits);
    const PlanLayout layout(spec, resolved, sizes, num_sms_);
    sizes.plan_bytes = layout.bytes * resolved.device_images;
    sizes.workspace_bytes = WorkspaceLayout(*kernel, spec, resolved, sizes, layout, num_sms_).bytes();
    return sizes;
  }

  Result<std::unique_ptr<PlanExecutor>> MakeExecutor(const AttentionSpec& spec, const PlanCapacity& capacity,
                                                     const PlanSizes& sizes, const MachineModel& machine) override {
    COPPICE_ASSIGN_OR_RETURN(const KernelVariant* kernel, Kernel(spec, capacity.page_size));
    if (machine.sm.num_sms == 0) {
      return InvalidArgument("machine model '" + machine.name + "' has no rates of an SM ('sm'); pass one of a GPU");
    }
    return CudaPlanExecutor::Create(device_, num_sms_, *kernel, spec, capacity, sizes, machine);
  }

  Result<std::unique_ptr<BoundKv>> BindKv(const AttentionSpec& spec, const KvLayerView& view) override {
    COPPICE_RETURN_IF_ERROR(CheckKvLayer(spec, view));
    COPPICE_ASSIGN_OR_RETURN(const KernelVariant* kernel, Kernel(spec, view.page_size));
    DeviceGuard guard(device_);
    TensorMaps maps{};
    if (kernel->path == KernelPath::kHopper) {
      COPPICE_ASSIGN_OR_RETURN(maps, EncodeTensorMaps(spec, view, kernel->head_dim));
    } else {
      COPPICE_RETURN_IF_ERROR(CheckAlignment(view));
    }
    return std::unique_ptr<BoundKv>(new BoundCudaKv(spec, view, kernel->path, maps));
  }

  Status AppendKv(const AttentionSpec& spec, const KvLayerView& kv, const AppendArgs& args, Stream stream) override {
    DeviceGuard guard(device_);
    return cuda::AppendKv(spec, kv, args, static_cast<cudaStream_t>(stream));
  }
  Status CopyPages(const AttentionSpec& spec, const KvLayerView& kv, std::span<const PageCopy> copies, Stream stream) override {
    DeviceGuard guard(device_);
    return cuda::CopyPages(spec, kv, copies, static_cast<cudaStream_t>(stream));
  }
  Status MoveSlots(const AttentionSpec& spec, const KvLayerView& kv, std::span<const SlotMove> moves, Stream stream) override {
    DeviceGuard guard(device_);
    return cuda::MoveSlots(spec, kv, moves, static_cast<cudaStream_t>(stream));
  }
  Status MergeStates(const StateView& into, std::span<const StateView> from, int64_t num_rows, int32_t num_heads, int32_t head_dim,
                     DType dtype, std::span<const uint8_t> mask, Stream stream) override {
    DeviceGuard guard(device_);
    return cuda::MergeStates(into, from, num_rows, num_heads, head_dim, dtype, mask, static_cast<cudaStream_t>(stream));
  }

 private:
  Result<const KernelVariant*> Kernel(const AttentionSpec& spec, int32_t page_size) const {
    return SelectKernel(kernels_, major_, minor_, spec, page_size);
  }

  int device_, num_sms_, major_, minor_;
  CudaKernels kernels_;
  MachineModel machine_;
};

}  // namespace

Result<std::unique_ptr<Context>> Context::CreateCuda(int device, CudaKernels kernels) {
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeCudaBackend(device, kernels));
  return std::unique_ptr<Context>(std::move(backend));
}

Result<std::unique_ptr<Backend>> MakeCudaBackend(int device, CudaKernels kernels, int most_sms, const MachineModel* machine) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return Unavailable("no CUDA device: the driver is missing or too old for CUDA " + std::to_string(CUDART_VERSION / 1000));
  }
  if (device < 0 || device >= count) {
    return Unavailable("CUDA device " + std::to_string(device) + " does not exist; this machine has " + std::to_string(count));
  }
  cudaDeviceProp properties;
  COPPICE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties"));
  const bool hopper = properties.major == 9 && properties.minor == 0;
  if (properties.major < 8 || (kernels == CudaKernels::kHopper && !hopper)) {
    return Unavailable("CUDA device " + std::to_string(device) + " (" + properties.name + ") has compute capability " +
                       std::to_string(properties.major) + "." + std::to_string(properties.minor) + "; the kernels need " +
                       (kernels == CudaKernels::kHopper ? "9.0 (Hopper)" : "8.0 (Ampere) or newer"));
  }
  COPPICE_ASSIGN_OR_RETURN(MachineModel own, MachineModelOf(device, properties));
  return std::unique_ptr<Backend>(
      new CudaBackend(device, properties, kernels, most_sms, machine != nullptr ? *machine : std::move(own)));
}

}  // namespace coppice::attention
