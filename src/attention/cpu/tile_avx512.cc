#include "attention/cpu/tile_avx512.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/cpu/exp2.h"
#include "attention/cpu/row_ops.h"
#include "attention/cpu/softmax_state.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")
#include "attention/cpu/row_simd.h"
#include "attention/cpu/tile_simd.h"
#include "attention/cpu/tile_vectors.h"

namespace coppice::attention::cpu {

TileKernels Avx512Kernels(DType q_dtype, DType kv_dtype) { return SimdKernels<TileVectors<16>>(q_dtype, kv_dtype); }
const RowKernels& Avx512RowKernels() { return RowSimd<TileVectors<16>>::kKernels; }

}  // namespace coppice::attention::cpu
#pragma GCC pop_options
#endif
