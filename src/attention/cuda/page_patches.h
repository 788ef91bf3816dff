// Writing single entries of page rows on the device: one launch in place of a copy for each. Layer: attention/cuda.
#pragma once

namespace coppice::attention::cuda {

inline constexpr int kPatchThreads = 256;

// The kernel. Arguments: int32_t* page_indices, const PagePatch* patches, int32_t count; a thread writes an entry. The patches may
// lie in page-locked host memory.
const void* PatchPagesKernel();

}  // namespace coppice::attention::cuda
