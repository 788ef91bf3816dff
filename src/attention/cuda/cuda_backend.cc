#include "attention/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <string>

#include "attention/cpu/kv_ops.h"
#include "attention/cuda/device_memory.h"
#include "attention/cuda/kernel_config.h"
#include "attention/cuda/kv_ops.h"
#include "attention/cuda/plan_executor.h"
#include "attention/cuda/tensor_map.h"
#include "attention/plan.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

using namespace cuda;

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, int num_sms, MachineModel machine) : device_(device), num_sms_(num_sms), machine_(std::move(machine)) {}

  DeviceKind device() const override { return DeviceKind::kCuda; }
  const MachineModel& machine() const override { return machine_; }

  Result<BackendTraits> Traits(const AttentionSpec& spec, const PlanCapacity& capacity) const override {
    COPPICE_RETURN_IF_ERROR(CheckSpec(spec));
    COPPICE_RETURN_IF_ERROR(CheckPageSize(capacity.page_size));
    return BackendTraits{
        .workers = num_sms_,
        .dense_tile_rows = kDenseRows,
        .dense_min_rows = kStreamRows + 1,
        .max_item_rows = 0,  // PlanTranslator cuts them
        .kv_tile = KernelVariantFor(spec.q_dtype, spec.head_dim).kv_tile,
        .native_head_dim = KernelVariantFor(spec.q_dtype, spec.head_dim).head_dim,
    };
  }

  Result<PlanSizes> Sizes(const AttentionSpec& spec, const PlanCapacity& capacity) const override {
    COPPICE_ASSIGN_OR_RETURN(const BackendTraits traits, Traits(spec, capacity));
    PlanSizes sizes = ComputePlanSizes(spec, capacity, traits);
    sizes.plan_bytes = PlanLayout(spec, capacity, sizes, num_sms_).bytes;
    return sizes;
  }

  Result<std::unique_ptr<PlanExecutor>> MakeExecutor(const AttentionSpec& spec, const PlanCapacity& capacity,
                                                     const PlanSizes& sizes) override {
    COPPICE_RETURN_IF_ERROR(CheckSpec(spec));
    COPPICE_RETURN_IF_ERROR(CheckPageSize(capacity.page_size));
    return CudaPlanExecutor::Create(device_, num_sms_, KernelVariantFor(spec.q_dtype, spec.head_dim), spec, capacity, sizes);
  }

  Result<std::unique_ptr<BoundKv>> BindKv(const AttentionSpec& spec, const KvLayerView& view) override {
    COPPICE_RETURN_IF_ERROR(CheckSpec(spec));
    COPPICE_RETURN_IF_ERROR(cpu::CheckKvLayer(spec, view));
    COPPICE_RETURN_IF_ERROR(CheckPageSize(view.page_size));
    DeviceGuard guard(device_);
    COPPICE_ASSIGN_OR_RETURN(const TensorMaps maps,
                             EncodeTensorMaps(spec, view, KernelVariantFor(spec.q_dtype, spec.head_dim).head_dim));
    return std::unique_ptr<BoundKv>(new BoundCudaKv(view, maps));
  }

  Status AppendKv(const AttentionSpec& spec, const KvLayerView& kv, const AppendArgs& args, Stream stream) override {
    DeviceGuard guard(device_);
    return cuda::AppendKv(spec, kv, args, static_cast<cudaStream_t>(stream));
  }
  Status CopyPages(const AttentionSpec& spec, const KvLayerView& kv, std::span<const PageCopy> copies, Stream stream) override {
    DeviceGuard guard(device_);
    return cuda::CopyPages(spec, kv, copies, static_cast<cudaStream_t>(stream));
  }
  Status MergeStates(const StateView& into, std::span<const StateView> from, int64_t num_rows, int32_t num_heads, int32_t head_dim,
                     DType dtype, std::span<const uint8_t> mask, Stream stream) override {
    DeviceGuard guard(device_);
    return cuda::MergeStates(into, from, num_rows, num_heads, head_dim, dtype, mask, static_cast<cudaStream_t>(stream));
  }

 private:
  static Status CheckSpec(const AttentionSpec& spec) {
    if (spec.q_dtype != spec.kv_dtype || SizeOf(spec.q_dtype) != 2) {
      return Unimplemented("attention on CUDA: q is " + std::string(Name(spec.q_dtype)) + " and KV is " +
                           std::string(Name(spec.kv_dtype)) + "; expected both bf16 or both f16");
    }
    if (spec.head_dim % 8 != 0 || spec.head_dim < 8 || spec.head_dim > 128) {
      return Unimplemented("attention on CUDA: head_dim = " + std::to_string(spec.head_dim) +
                           "; expected a multiple of 8 up to 128");
    }
    if (spec.num_kv_heads < 1 || spec.num_qo_heads % spec.num_kv_heads != 0 || spec.group_size() > kDenseRows) {
      return Unimplemented("attention on CUDA: " + std::to_string(spec.num_qo_heads) + " query heads over " +
                           std::to_string(spec.num_kv_heads) + " kv heads; expected at most " + std::to_string(kDenseRows) +
                           " query heads for each kv head");
    }
    if (spec.sm_scale < 0.0f) {
      return Unimplemented("attention on CUDA: sm_scale = " + std::to_string(spec.sm_scale) + "; expected a positive scale");
    }
    if (spec.deterministic) return Unimplemented("attention on CUDA: deterministic mode is not built; the CPU backend has it");
    return OkStatus();
  }
  static Status CheckPageSize(int32_t page_size) {
    if (page_size >= 8 && page_size <= 256 && std::has_single_bit(static_cast<uint32_t>(page_size))) return OkStatus();
    return Unimplemented("attention on CUDA: page_size = " + std::to_string(page_size) + "; expected a power of two from 8 to 256");
  }

  int device_, num_sms_;
  MachineModel machine_;
};

}  // namespace

Result<std::unique_ptr<Backend>> MakeCudaBackend(int device) {
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
  if (properties.major != 9 || properties.minor != 0) {
    return Unavailable("CUDA device " + std::to_string(device) + " (" + properties.name + ") has compute capability " +
                       std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                       "; the kernels need 9.0 (Hopper)");
  }
  const std::string name = properties.name;
  COPPICE_ASSIGN_OR_RETURN(MachineModel machine, ShippedMachineModel(name.find("H200") != std::string::npos ? "h200" : "h100"));
  return std::unique_ptr<Backend>(new CudaBackend(device, properties.multiProcessorCount, std::move(machine)));
}

}  // namespace coppice::attention
