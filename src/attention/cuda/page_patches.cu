// Scatters page entries. Layer: attention/cuda.
#include "attention/cuda/page_patches.h"

#include <cstdint>

#include "attention/cuda/page_rows.h"

namespace coppice::attention::cuda {
namespace {

__global__ void PatchPages(int32_t* page_indices, const PagePatch* patches, int32_t count) {
  const int32_t i = static_cast<int32_t>(blockIdx.x * kPatchThreads + threadIdx.x);
  if (i < count) page_indices[patches[i].at] = patches[i].page;
}

}  // namespace

const void* PatchPagesKernel() { return reinterpret_cast<const void*>(&PatchPages); }

}  // namespace coppice::attention::cuda
