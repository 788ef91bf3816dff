// Launches of the persistent kernel. Layer: attention/cuda.
#include "attention/cuda/kernels/hopper.h"

#include <bit>
#include <cstdint>

#include "attention/cuda/device_memory.h"

namespace coppice::attention::cuda {

Status AllowSharedMemory(const KernelVariant& kernel) {
  return CudaStatus(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
                    "raising the attention kernel's shared memory");
}

Status HopperKernel::Launch(const LaunchChoice&, const KernelParams& params, const BoundCudaKv& kv, cudaStream_t stream) const {
  const TensorMaps& maps = kv.maps();
  const KvLayerView& view = kv.view();
  KernelParams boxed = params;
  boxed.box_tokens = maps.box_tokens;
  boxed.box_shift = std::countr_zero(static_cast<uint32_t>(maps.box_tokens));
  boxed.units_per_page = maps.units_per_page;
  boxed.units_per_head = maps.units_per_head;
  boxed.split_boxes = maps.split_boxes;
  // The fast mode's kernels take no more than its base.
  DeterministicParams all{boxed, folds_};
  GatherParams gathered{boxed,
                        static_cast<const uint8_t*>(view.k),
                        static_cast<const uint8_t*>(view.v),
                        view.head_stride / kGatherUnit,
                        static_cast<uint32_t>(view.page_stride / kGatherUnit),
                        static_cast<uint32_t>(view.slot_stride / kGatherUnit)};
  void* arguments[] = {variant_.gathers ? static_cast<void*>(&gathered) : &all, const_cast<CUtensorMap*>(&maps.k),
                       const_cast<CUtensorMap*>(&maps.v)};
  // It may start while the kernel before it ends, for whose results it waits.
  cudaLaunchAttribute overlaps{};
  overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlaps.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(num_ctas_);
  config.blockDim = dim3(variant_.threads);
  config.dynamicSmemBytes = variant_.shared_bytes;
  config.stream = stream;
  config.attrs = &overlaps;
  config.numAttrs = 1;
  return CudaStatus(cudaLaunchKernelExC(&config, variant_.function, arguments), "launching the attention kernel");
}

}  // namespace coppice::attention::cuda
