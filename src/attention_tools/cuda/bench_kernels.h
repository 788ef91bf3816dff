// Device helpers of the attention benchmark: data, cache flush, fp64 check. Layer: attention/cuda, benchmarks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "coppice/attention/attention.h"

namespace coppice::attention::cuda::bench {

// `count` bf16 elements, roughly normal with standard deviation 1, a function of the seed.
void FillNormal(void* to, int64_t count, uint64_t seed, cudaStream_t stream);
// Reads and writes `bytes` bytes, more than the L2 holds.
void Flush(void* memory, int64_t bytes, cudaStream_t stream);

// One query row of one branch, in fp64, straight from the pages: out [num_qo_heads, head_dim]. `scores` is scratch of
// num_qo_heads * kv_len doubles. The row sees kv indices [0, kv_len).
void ReferenceRow(const AttentionSpec& spec, const KvLayerView& kv, const int32_t* page_row, int32_t kv_len, const void* q,
                  double* scores, double* out, cudaStream_t stream);

}  // namespace coppice::attention::cuda::bench
