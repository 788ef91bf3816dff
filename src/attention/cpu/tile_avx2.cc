#include "attention/cpu/tile_avx2.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/cpu/exp2.h"
#include "attention/cpu/row_ops.h"
#include "attention/cpu/softmax_state.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#include "attention/cpu/dense_tile_int16.h"
#include "attention/cpu/row_simd.h"
#include "attention/cpu/tile_simd.h"
#include "attention/cpu/tile_vectors.h"

namespace coppice::attention::cpu {

TileKernels Avx2Kernels(DType q_dtype, DType kv_dtype) {
  TileKernels kernels = SimdKernels<TileVectors<8>>(q_dtype, kv_dtype);
  UseIntegers<Int16Products<TileVectors<8>>>("avx2 int16 dense tile", q_dtype, kv_dtype, kernels);
  return kernels;
}
const RowKernels& Avx2RowKernels() { return RowSimd<TileVectors<8>>::kKernels; }

}  // namespace coppice::attention::cpu
#pragma GCC pop_options
#endif
