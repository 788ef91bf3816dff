#include "attention_tools/cuda/bench_kernels.h"

#include <cuda_bf16.h>

#include <cmath>

namespace coppice::attention::cuda::bench {
namespace {

__device__ uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

__global__ void FillKernel(__nv_bfloat16* to, int64_t count, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const uint64_t bits = Mix(seed + i);
    float sum = 0;  // of four uniforms
    for (int k = 0; k < 4; ++k) sum += static_cast<float>(bits >> (16 * k) & 0xffff) / 65536.0f - 0.5f;
    to[i] = __float2bfloat16(sum * 1.7320508f);
  }
}

__global__ void FlushKernel(float4* memory, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    float4 v = memory[i];
    v.x += 1.0f;
    memory[i] = v;
  }
}

struct RowParams {
  const __nv_bfloat16 *k, *v, *q;
  int64_t page_stride, head_stride, slot_stride;
  const int32_t* pages;
  int32_t page_size, kv_len, head_dim, group;
  double scale;
};

__global__ void ScoreKernel(RowParams p, double* scores) {
  const int head = blockIdx.y, token = blockIdx.x * blockDim.x + threadIdx.x;
  if (token >= p.kv_len) return;
  const __nv_bfloat16* k =
      p.k + p.pages[token / p.page_size] * p.page_stride + head / p.group * p.head_stride + token % p.page_size * p.slot_stride;
  double sum = 0;
  for (int e = 0; e < p.head_dim; ++e) sum += double{__bfloat162float(k[e])} * double{__bfloat162float(p.q[head * p.head_dim + e])};
  scores[int64_t{head} * p.kv_len + token] = sum * p.scale;
}

// One block a head, head_dim threads in each of 8 token strides.
__global__ void ValueKernel(RowParams p, const double* scores, double* out) {
  __shared__ double acc[8][256], sums[8];
  const int head = blockIdx.x, e = threadIdx.x, part = threadIdx.y;
  const double* s = scores + int64_t{head} * p.kv_len;
  double most = -INFINITY, sum = 0, value = 0;
  for (int t = 0; t < p.kv_len; ++t) most = fmax(most, s[t]);
  for (int t = part; t < p.kv_len; t += 8) {
    const double w = exp(s[t] - most);
    const __nv_bfloat16* v =
        p.v + p.pages[t / p.page_size] * p.page_stride + head / p.group * p.head_stride + t % p.page_size * p.slot_stride;
    sum += w;
    value += w * double{__bfloat162float(v[e])};
  }
  acc[part][e] = value;
  if (e == 0) sums[part] = sum;
  __syncthreads();
  if (part != 0) return;
  for (int i = 1; i < 8; ++i) value += acc[i][e], sum += sums[i];
  out[head * p.head_dim + e] = value / sum;
}

}  // namespace

void FillNormal(void* to, int64_t count, uint64_t seed, cudaStream_t stream) {
  FillKernel<<<132 * 8, 512, 0, stream>>>(static_cast<__nv_bfloat16*>(to), count, seed << 40);
}

void Flush(void* memory, int64_t bytes, cudaStream_t stream) {
  FlushKernel<<<132 * 4, 512, 0, stream>>>(static_cast<float4*>(memory), bytes / 16);
}

void ReferenceRow(const AttentionSpec& spec, const KvLayerView& kv, const int32_t* page_row, int32_t kv_len, const void* q,
                  double* scores, double* out, cudaStream_t stream) {
  const RowParams params{static_cast<const __nv_bfloat16*>(kv.k),
                         static_cast<const __nv_bfloat16*>(kv.v),
                         static_cast<const __nv_bfloat16*>(q),
                         kv.page_stride,
                         kv.head_stride,
                         kv.slot_stride,
                         page_row,
                         kv.page_size,
                         kv_len,
                         spec.head_dim,
                         spec.group_size(),
                         1.0 / std::sqrt(static_cast<double>(spec.head_dim))};
  ScoreKernel<<<dim3((kv_len + 255) / 256, spec.num_qo_heads), 256, 0, stream>>>(params, scores);
  ValueKernel<<<spec.num_qo_heads, dim3(spec.head_dim, 8), 0, stream>>>(params, scores, out);
}

}  // namespace coppice::attention::cuda::bench
