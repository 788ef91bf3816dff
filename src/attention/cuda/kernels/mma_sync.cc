// Launches of the kernel of mma.sync. Layer: attention/cuda.
#include "attention/cuda/kernels/mma_sync.h"

#include "attention/cuda/device_memory.h"
#include "attention/cuda/sm80_config.h"

namespace coppice::attention::cuda {

Status MmaSyncKernel::Launch(const LaunchChoice&, const KernelParams& params, const BoundCudaKv& kv, cudaStream_t stream) const {
  const KvLayerView& view = kv.view();
  Sm80Params all{.plan = params,
                 .k = view.k,
                 .v = view.v,
                 .page_stride = view.page_stride,
                 .head_stride = view.head_stride,
                 .slot_stride = view.slot_stride,
                 .folds = folds_};
  void* arguments[] = {&all};
  return CudaStatus(
      cudaLaunchKernel(variant_.function, dim3(num_ctas_), dim3(variant_.threads), arguments, variant_.shared_bytes, stream),
      "launching the attention kernel");
}

}  // namespace coppice::attention::cuda
