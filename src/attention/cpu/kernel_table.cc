#include "attention/cpu/kernel_table.h"

#include "attention/cpu/dense_tile_bf16.h"
#include "attention/cpu/stream_tile_amx.h"
#include "attention/cpu/stream_tile_bf16.h"
#include "attention/cpu/tile_avx2.h"
#include "attention/cpu/tile_avx512.h"
#include "attention/cpu/tile_avx512_vnni.h"
#include "attention/cpu/tile_avx_vnni.h"
#include "attention/cpu/tile_generic.h"

namespace coppice::attention::cpu {

TileKernels SelectKernels(Isa isa, const AttentionSpec& spec) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) {
    TileKernels kernels =
        CpuHasAvx512Vnni() ? Avx512VnniKernels(spec.q_dtype, spec.kv_dtype) : Avx512Kernels(spec.q_dtype, spec.kv_dtype);
    if (spec.q_dtype == DType::kBF16 && spec.kv_dtype == DType::kBF16) {
      if (isa >= Isa::kAmxBf16) {
        kernels = {.dense = AmxBf16DenseTile(), .stream = AmxBf16StreamTile(), .dense_min_rows = 5, .stream_max_rows = 16};
      } else if (isa >= Isa::kAvx512Bf16) {
        kernels.dense = Avx512Bf16DenseTile();
        kernels.stream = Avx512Bf16StreamTile();
        kernels.dense_min_rows = 33;
        kernels.dense_row_unit = 16;
        kernels.stream_max_rows = 32;
      }
    }
    return kernels;
  }
  if (isa == Isa::kAvxVnni) return AvxVnniKernels(spec.q_dtype, spec.kv_dtype);
  if (isa >= Isa::kAvx2) return Avx2Kernels(spec.q_dtype, spec.kv_dtype);
#endif
  const TileKernel generic = GenericTileKernel(spec.q_dtype, spec.kv_dtype);
  return {.dense = generic, .stream = generic, .dense_min_rows = 1};
}

TileKernels SelectKernels(const TileForms& forms, const AttentionSpec& spec) {
  if (spec.deterministic || spec.q_dtype != DType::kBF16 || spec.kv_dtype != DType::kBF16) return SelectKernels(forms.table, spec);
  TileKernels kernels = SelectKernels(forms.dense, spec);
  if (forms.stream != forms.dense) {
    kernels.stream = SelectKernels(forms.stream, spec).stream;
    kernels.stream_max_rows = 0;  // known of tiles of one set
  }
  return kernels;
}

}  // namespace coppice::attention::cpu
