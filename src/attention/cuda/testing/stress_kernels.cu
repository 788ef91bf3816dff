#include "attention/cuda/testing/stress_kernels.h"

#include "attention/cuda/kernel_instance.cuh"
#include "attention/cuda/sm80_instance.cuh"
#include "attention/cuda/stress_delay.cuh"

namespace coppice::attention::cuda {
namespace {

__global__ void CompareAndPoisonKernel(uint32_t* got, const uint32_t* want, int64_t words, unsigned long long* differences) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= words) return;
  if (got[i] != want[i]) atomicAdd(differences, 1ull);
  got[i] = 0xffffffffu;
}

}  // namespace

const KernelVariant kStressHopper = Variant<StressConfig<Config<__nv_bfloat16, 64>>>(DType::kBF16);
const KernelVariant kStressOverlapped =
    Variant<StressConfig<Config<__nv_bfloat16, 128, /*kDeterministic=*/false, /*kOverlapsDecode=*/true>>>(DType::kBF16);
const KernelVariant kStressDeterministic = Variant<StressConfig<Config<__nv_bfloat16, 64, /*kDeterministic=*/true>>>(DType::kBF16);
const KernelVariant kStressMmaSync = Sm80Variant<StressConfig<Sm80Config<__nv_bfloat16, 64>>>(DType::kBF16);

void CompareAndPoison(uint32_t* got, const uint32_t* want, int64_t words, unsigned long long* differences, cudaStream_t stream) {
  CompareAndPoisonKernel<<<static_cast<unsigned>((words + 255) / 256), 256, 0, stream>>>(got, want, words, differences);
}

}  // namespace coppice::attention::cuda
