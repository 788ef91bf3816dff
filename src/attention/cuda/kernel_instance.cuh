// Includes of an instantiation file: the kernel and its row of the table. Layer: attention/cuda.
#pragma once

#include "attention/cuda/attention_kernel.cuh"
#include "attention/cuda/kernel_variants.h"

namespace coppice::attention::cuda {

extern const KernelVariant kBF16D64, kBF16D128, kF16D64, kF16D128, kOverlappedBF16D128, kOverlappedF16D128;
extern const KernelVariant kGatherBF16D64, kGatherBF16D128, kGatherF16D64, kGatherF16D128;
extern const KernelVariant kDeterministicBF16D64, kDeterministicBF16D128, kDeterministicF16D64, kDeterministicF16D128;

// overlapped: the kernel of the same table row with overlapped tiles, or null.
template <class C>
KernelVariant Variant(DType dtype, const KernelVariant* overlapped = nullptr) {
  static_assert(sizeof(SharedStorage<C>) <= 227 * 1024, "shared memory of an SM that a CTA may use");
  return {.path = KernelPath::kHopper,
          .dtype = dtype,
          .head_dim = C::kHeadDim,
          .kv_tile = C::kKvTile,
          .threads = C::kThreads,
          .shared_bytes = sizeof(SharedStorage<C>),
          .ctas_per_sm = 1,
          .fold_bytes_per_cta = C::kDeterministic ? C::kFoldFloats * C::kFoldThreads * static_cast<int>(sizeof(float)) : 0,
          .function = reinterpret_cast<const void*>(&AttentionKernel<C>),
          .overlapped = overlapped,
          .gathers = C::kGathers};
}

}  // namespace coppice::attention::cuda
