// Includes of an instantiation file of the mma.sync kernel: the kernel and its row of the table. Layer: attention/cuda.
#pragma once

#include "attention/cuda/kernel_variants.h"
#include "attention/cuda/sm80_kernel.cuh"

namespace coppice::attention::cuda {

extern const KernelVariant kSm80BF16D64, kSm80BF16D128, kSm80BF16D256, kSm80F16D64, kSm80F16D128, kSm80F16D256;

template <class C>
KernelVariant Sm80Variant(DType dtype) {
  static_assert(sizeof(Sm80Storage<C>) <= 99 * 1024, "shared memory that a CTA of sm_86 and sm_89 may use");
  return {.path = KernelPath::kMmaSync,
          .dtype = dtype,
          .head_dim = C::kHeadDim,
          .kv_tile = C::kKvTile,
          .threads = C::kThreads,
          .shared_bytes = sizeof(Sm80Storage<C>),
          .ctas_per_sm = C::kCtasPerSm,
          .fold_bytes_per_cta = C::kFoldBytesPerCta,
          .function = reinterpret_cast<const void*>(&Sm80Kernel<C>)};
}

}  // namespace coppice::attention::cuda
