// PTX instructions of the products. Layer: ops/cuda.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace coppice::ops::cuda {

struct OperandA {
  uint32_t r[4];
};
struct OperandB {
  uint32_t r[2];
};

// d += a b, m16n8k16, fp32 sums. PTX ISA 9.7.14.5, "mma.sync.m16n8k16".
template <class T>
__device__ void MultiplyAdd(float (&d)[4], const OperandA& a, const OperandB& b);
template <>
__device__ inline void MultiplyAdd<__nv_bfloat16>(float (&d)[4], const OperandA& a, const OperandB& b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}
template <>
__device__ inline void MultiplyAdd<__half>(float (&d)[4], const OperandA& a, const OperandB& b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

// 16 bytes that are read once: they displace nothing in L1. PTX ISA 9.7.9.9, "ld.global.nc".
__device__ inline uint4 LoadOnce(const void* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// PTX ISA 9.7.9.16, "prefetch".
__device__ inline void PrefetchL2(const void* from) { asm volatile("prefetch.global.L2 [%0];" : : "l"(from)); }

}  // namespace coppice::ops::cuda
