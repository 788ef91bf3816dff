// The PTX that the kernels use and CUDA C++ does not offer: one instruction a function, with its section of the PTX ISA.
// No policy here. Layer: core/cuda.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace coppice::ptx {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// The same value, which the warp's lanes agree on, in a register: ptxas does not derive it again at each use.
__device__ __forceinline__ uint32_t Uniform(uint32_t value) { return __shfl_sync(0xffffffffu, value, 0); }

// The value stays in its register, from which addresses with constant offsets follow: ptxas does not derive it again at each use.
template <class T>
__device__ __forceinline__ void Pin(T*& pointer) {
  asm volatile("" : "+l"(pointer));
}

// The same value; what follows from it is computed where it is used, not kept in registers across the loops around.
__device__ __forceinline__ int Here(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// ---- mbarrier (9.7.13.15). A phase completes when all expected arrivals and bytes are in.

__device__ __forceinline__ void BarrierInit(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void FenceBarrierInit() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void BarrierArrive(uint64_t* barrier) { BarrierArrive(SharedAddress(barrier)); }
__device__ __forceinline__ void BarrierArriveExpectBytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes) : "memory");
}
// Bytes that the phase under way waits for besides; no arrival.
__device__ __forceinline__ void BarrierExpectBytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool BarrierTryWait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
// Whether the phase of this parity is complete, without waiting.
__device__ __forceinline__ bool BarrierTest(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
__device__ __forceinline__ bool BarrierTest(uint64_t* barrier, uint32_t parity) {
  return BarrierTest(SharedAddress(barrier), parity);
}
// Returns once the phase of this parity is complete.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  while (!BarrierTryWait(barrier, parity)) {
  }
}
__device__ __forceinline__ void BarrierWait(uint64_t* barrier, uint32_t parity) { BarrierWait(SharedAddress(barrier), parity); }

// ---- Clusters (9.7.13.3, 9.7.13.15.13, 9.7.9.22): another CTA's shared memory has addresses of its own.

// Where the cluster's CTA of this rank has what lies at `address` here.
__device__ __forceinline__ uint32_t ClusterAddress(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// At a barrier whose address ClusterAddress gave. It says that this thread has read, not that it has written: release at cluster
// scope would wait for all of its stores to device memory (MEMBAR.ALL.GPU, 0.3 us).
__device__ __forceinline__ void BarrierArriveCluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// All threads of the cluster that have not exited arrive, then wait. Orders no accesses to device memory.
__device__ __forceinline__ void ClusterArrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void ClusterWait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// ---- Named barriers (9.7.13.1): `threads` arrivals, a multiple of 32.

__device__ __forceinline__ void NamedBarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// As NamedBarrierSync, and whether any thread says so.
__device__ __forceinline__ bool NamedBarrierAny(int id, int threads, bool predicate) {
  uint32_t any;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %3, 0;\nbar.red.or.pred q, %1, %2, p;\nselp.u32 %0, 1, 0, q;\n}\n"
               : "=r"(any)
               : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(predicate))
               : "memory");
  return any != 0;
}

// ---- Proxies (9.7.13.4): orders ordinary shared-memory accesses of this thread with those of the copy engine and wgmma.

__device__ __forceinline__ void FenceProxyAsync() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void FenceProxyAsyncGlobal() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- Priorities of lines in the L2 (9.7.9.18): what createpolicy.fractional gives for all lines. First to leave, as usual, last.

inline constexpr uint64_t kEvictFirst = 0x12f0000000000000, kEvictNormal = 0x1000000000000000, kEvictLast = 0x14f0000000000000;

__device__ __forceinline__ void StoreL2(float2* to, float2 v, uint64_t priority) {
  asm volatile("st.global.cg.L2::cache_hint.v2.f32 [%0], {%1, %2}, %3;" ::"l"(to), "f"(v.x), "f"(v.y), "l"(priority) : "memory");
}
__device__ __forceinline__ float4 LoadL2(const float4* from, uint64_t priority) {
#if __CUDA_ARCH__ < 900
  return __ldcg(from);  // other cards have other encodings
#endif
  float4 v;
  asm volatile("ld.global.cg.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from), "l"(priority));
  return v;
}

// ---- Bulk tensor copy (9.7.9.27): a box of global memory to shared memory, completing bytes on `barrier`.

__device__ __forceinline__ void TensorLoad5(void* to, const CUtensorMap* map, uint64_t* barrier, int c0, int c1, int c2, int c3,
                                            int c4, uint64_t priority) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6, "
      "%7}], "
      "[%2], %8;" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(priority)
      : "memory");
}
// The same to the shared memory of each CTA of the cluster whose bit `ctas` has, at the same place, its bytes on each one's
// barrier.
__device__ __forceinline__ void TensorLoad5Multicast(void* to, const CUtensorMap* map, uint64_t* barrier, int c0, int c1, int c2,
                                                     int c3, int c4, uint16_t ctas, uint64_t priority) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1, "
      "{%3, "
      "%4, %5, %6, %7}], [%2], %8, %9;" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"(ctas), "l"(priority)
      : "memory");
}
__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- Bulk copy (9.7.9.25.4.1): `bytes` of global memory, a multiple of 16, to shared memory, completing them on `barrier`.

__device__ __forceinline__ void BulkLoad(void* to, const void* from, uint32_t bytes, uint64_t* barrier, uint64_t priority) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   SharedAddress(to)),
               "l"(from), "r"(bytes), "r"(SharedAddress(barrier)), "l"(priority)
               : "memory");
}

// The same to several CTAs of the cluster, as TensorLoad5Multicast.
__device__ __forceinline__ void BulkLoadMulticast(void* to, const void* from, uint32_t bytes, uint64_t* barrier, uint16_t ctas,
                                                  uint64_t priority) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1], %2, [%3], "
      "%4, "
      "%5;" ::"r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(SharedAddress(barrier)), "h"(ctas), "l"(priority)
      : "memory");
}

// ---- Prefetch to the L2 (9.7.9.16, 9.7.9.25): bytes, a multiple of 16; the line of an address.

__device__ __forceinline__ void PrefetchL2(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void PrefetchL2Line(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// ---- cp.async (9.7.9.25): 16 bytes, of which source_bytes 0 writes zeros; 8 bytes.

__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from, int source_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(source_bytes) : "memory");
}
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from, int source_bytes, uint64_t priority) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(source_bytes),
               "l"(priority)
               : "memory");
}
__device__ __forceinline__ void CopyAsync8(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void CopyAsyncWaitAll() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// This thread's arrival at a barrier (9.7.13.15.16), which happens when all its copies so far are there.
__device__ __forceinline__ void CopyAsyncArrive(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}

// ---- Register budget of a warpgroup (9.7.19.5).

template <int kRegisters>
__device__ __forceinline__ void DecreaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void IncreaseRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- wgmma ordering (9.7.15.7).

// Orders this warpgroup's register writes (and earlier wgmma) before the next wgmma.
__device__ __forceinline__ void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when at most kPending committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accesses to accumulators across this point.
template <int N>
__device__ __forceinline__ void PinRegisters(float (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

// ---- Warp-level matrix loads and products (9.7.14).

__device__ __forceinline__ void LoadMatrix4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void LoadMatrix4Transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// Transposes an 8 x 8 matrix of 16-bit elements held by the warp.
__device__ __forceinline__ uint32_t TransposeMatrix(uint32_t r) {
  uint32_t t;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(r));
  return t;
}
template <class T>
__device__ __forceinline__ void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void MmaM16N8K16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void MmaM16N8K16<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Arithmetic.

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- Memory model (8.10, 9.7.13.4) at device scope: an atomic that orders nothing, and the halves of the fence that make it
// release what came before or acquire what comes after. On Hopper the first waits for this thread's stores, the second for nothing.

__device__ __forceinline__ int32_t AtomicAddDevice(int32_t* p, int32_t value) {
  int32_t old;
  asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(value) : "memory");
  return old;
}
__device__ __forceinline__ int32_t LoadRelaxedDevice(const int32_t* p) {
  int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p));
  return value;
}
__device__ __forceinline__ void FenceRelease() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.release.gpu;" ::: "memory");
#else
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}
__device__ __forceinline__ void FenceAcquire() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.acquire.gpu;" ::: "memory");
#else
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

}  // namespace coppice::ptx
