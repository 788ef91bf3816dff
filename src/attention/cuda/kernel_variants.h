// The compiled variants of the attention kernels, one small .cu file each, so that builds run in parallel; and which of them serves
// a spec on a device. Layer: attention/cuda.
#pragma once

#include "attention/cuda/lower/kernel_choice.h"
#include "coppice/attention/attention.h"
#include "coppice/core/types.h"

namespace coppice::attention::cuda {

struct KernelVariant {
  KernelPath path;
  DType dtype;
  int head_dim;  // after padding
  int kv_tile, threads, shared_bytes;
  int ctas_per_sm;         // at most
  int fold_bytes_per_cta;  // deterministic mode
  const void* function;
  const KernelVariant* overlapped = nullptr;  // the one with overlapped tiles (overlapped_stream.cuh), if there is one
  bool gathers = false;                       // for pages of fewer than kBoxedPageSize tokens

  KernelChoice choice() const { return {.path = path, .head_dim = head_dim, .kv_tile = kv_tile, .gathers = gathers}; }
};

// The Hopper kernel for a dtype (bf16 or f16) and head_dim (at most 128), of fast or deterministic mode, or of fast mode for small
// pages; the mma.sync kernel (at most 256), both modes' own.
const KernelVariant& HopperVariantFor(DType dtype, int head_dim, bool deterministic, bool gathers);
const KernelVariant& MmaSyncVariantFor(DType dtype, int head_dim);

// The compiled kernel of ChooseKernel.
Result<const KernelVariant*> SelectKernel(CudaKernels kernels, int major, int minor, const AttentionSpec& spec, int32_t page_size);

}  // namespace coppice::attention::cuda
