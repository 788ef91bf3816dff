#include "attention/cpu/tile_avx_vnni.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/cpu/exp2.h"
#include "attention/cpu/softmax_state.h"
#include "attention/cpu/tile_avx2.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avxvnni")
#include "attention/cpu/dense_tile_int16.h"
#include "attention/cpu/tile_vectors.h"

namespace coppice::attention::cpu {

TileKernels AvxVnniKernels(DType q_dtype, DType kv_dtype) {
  TileKernels kernels = Avx2Kernels(q_dtype, kv_dtype);
  UseIntegers<Int16Products<TileVectors<8>, /*kVnni=*/true>>("avxvnni int16 dense tile", q_dtype, kv_dtype, kernels);
  return kernels;
}

}  // namespace coppice::attention::cpu
#pragma GCC pop_options
#endif
