#include "attention/cpu/kernel_table.h"

#include "attention/cpu/dense_tile_bf16.h"
#include "attention/cpu/tile_generic.h"

namespace coppice::attention::cpu {

TileKernels SelectKernels(Isa isa, const AttentionSpec& spec) {
  const TileKernel generic = GenericTileKernel(spec.q_dtype, spec.kv_dtype);
  TileKernels kernels = {.dense = generic, .stream = generic};
#if defined(__x86_64__)
  const bool all_bf16 = spec.q_dtype == DType::kBF16 && spec.kv_dtype == DType::kBF16;
  if (all_bf16 && isa >= Isa::kAmxBf16) {
    kernels.dense = AmxBf16DenseTile();
  } else if (all_bf16 && isa >= Isa::kAvx512Bf16) {
    kernels.dense = Avx512Bf16DenseTile();
  }
#endif
  return kernels;
}

}  // namespace coppice::attention::cpu
