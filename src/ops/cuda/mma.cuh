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

// 16 bytes into shared memory, asynchronously. Once: they displace nothing in L1. PTX ISA 9.7.9.25.3, "cp.async".
__device__ inline void CopyOnce(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
}
// The same for bytes that other warps read too, which L1 keeps: the first `bytes`, then zeros.
__device__ inline void CopyShared(void* to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from), "r"(bytes)
               : "memory");
}
// The thread's copies since the last call are a group; it waits until at most kGroups of its groups are under way.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int kGroups>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kGroups) : "memory");
}

// Asks for bytes, a multiple of 16 from such an address, to come to L2; nothing before Hopper. PTX ISA 9.7.9.25.5.2,
// "cp.async.bulk.prefetch".
__device__ inline void PrefetchL2(const void* from, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(from), "r"(bytes) : "memory");
#endif
}

}  // namespace coppice::ops::cuda
