// The stress test's kernel for small pages. Layer: attention/cuda, tests.
#include "attention/cuda/kernel_instance.cuh"
#include "attention/cuda/stress_delay.cuh"
#include "attention/cuda/testing/stress_kernels.h"

namespace coppice::attention::cuda {

const KernelVariant kStressSmallPages =
    Variant<StressConfig<Config<__nv_bfloat16, 64, /*kDeterministic=*/false, /*kOverlapsDecode=*/false, /*kGathers=*/true>>>(
        DType::kBF16);

}  // namespace coppice::attention::cuda
