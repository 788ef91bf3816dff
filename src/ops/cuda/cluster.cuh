// PTX of thread block clusters: CTAs that start together and reach each other's shared memory. Compute capability 9.0.
// Layer: ops/cuda.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/cuda/ptx.cuh"

namespace coppice::ops::cuda::ptx {

using namespace coppice::ptx;

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all CTAs of the cluster; what they wrote before is seen by all after it. PTX ISA 9.7.13.4, "barrier.cluster".
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Arrives at the mbarrier that lies at this address of shared memory in the cluster's CTA of this rank. 9.7.13.15.13. It orders
// this CTA's accesses only: a release to the whole cluster takes a microsecond, and what was read by wgmma needs none.
__device__ __forceinline__ void BarrierArriveAt(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(SharedAddress(barrier)),
      "r"(rank)
      : "memory");
}

// Bulk tensor copies (9.7.9.27.1.2) of a box of a matrix, completing its bytes on `barrier`; the second kind to the same address in
// every CTA of the cluster whose bit is set in `ranks`, on its barrier at the same address.
__device__ __forceinline__ void TensorLoad2(void* to, const CUtensorMap* map, uint64_t* barrier, int c0, int c1,
                                            uint64_t priority) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], "
      "%5;" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "l"(priority)
      : "memory");
}
__device__ __forceinline__ void TensorLoad2(void* to, const CUtensorMap* map, uint64_t* barrier, int c0, int c1, uint64_t priority,
                                            uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %6, %5;" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "l"(priority), "h"(ranks)
      : "memory");
}

// Bulk tensor copies (9.7.9.27.1.3) of a box of shared memory to a matrix, what lies inside of it; each is a group of its own of
// the thread that calls. Waits of that thread: until its groups have read their shared memory; until what they wrote is written.
__device__ __forceinline__ void TensorStore2(const CUtensorMap* map, const void* from, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\ncp.async.bulk.commit_group;" ::"l"(map),
      "r"(SharedAddress(from)), "r"(c0), "r"(c1)
      : "memory");
}
__device__ __forceinline__ void BulkWaitRead() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void BulkWait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Stores four 8 x 8 matrices of 16-bit elements, each transposed, lane i giving the address of row i % 8 of matrix i / 8 as it lies
// in memory. 9.7.14.5.16, "stmatrix".
__device__ __forceinline__ void StoreMatrix4Transposed(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// A flag in device memory that one CTA sets and another waits for.
__device__ __forceinline__ void StoreRelease(uint32_t* flag, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

}  // namespace coppice::ops::cuda::ptx
