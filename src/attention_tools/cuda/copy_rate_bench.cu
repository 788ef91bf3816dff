// Throughput of an SM's copy path to shared memory, in GB/s an SM: copies of 4 KB, a page of 16 tokens of one head, from a set
// that the L2 holds, by each CTA for itself or by the two of a cluster for both (multicast), as bulk copies, as boxes of a tensor
// map of two dimensions, and of five as KV has; and beside them a stream of each CTA's own from memory. The physics behind
// docs/kernels/overlap.md: what binds. sm_90a. No arguments.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "attention/cuda/device_memory.h"
#include "attention_tools/cuda/mix.cuh"
#include "core/check.h"
#include "core/cuda/ptx.cuh"
#include "core/cuda/tensor_map_encoder.h"

namespace coppice::attention::cuda::bench {
namespace {

constexpr int kPiece = 4096, kPiecesOfStage = 8, kStageBytes = kPiece * kPiecesOfStage;  // K or V of a dense step
constexpr int kOwnPieces = 4, kOwnStageBytes = kPiece * kOwnPieces;
constexpr int kSharedStages = 4, kOwnStages = 4;  // in flight: 128 KB as dense tiles have, 64 KB
constexpr int kSteps = 3000;                      // of the set
enum Way : int { kBulk, kMap2, kMap5 };
constexpr int64_t kSetBytes = int64_t{16} << 20, kOwnBytes = int64_t{8} << 30;

struct Shared {
  alignas(1024) uint8_t set[kSharedStages][kStageBytes], own[kOwnStages][kOwnStageBytes];
  uint64_t full[kSharedStages], free[kSharedStages], own_full[kOwnStages];
  volatile int32_t over;
};

__device__ __forceinline__ void TensorLoad2(void* to, const CUtensorMap* map, uint64_t* barrier, int row) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
                   ptx::SharedAddress(to)),
               "l"(map), "r"(ptx::SharedAddress(barrier)), "r"(0), "r"(row)
               : "memory");
}
__device__ __forceinline__ void TensorLoad2Multicast(void* to, const CUtensorMap* map, uint64_t* barrier, int row, uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], "
      "%5;" ::"r"(ptx::SharedAddress(to)),
      "l"(map), "r"(ptx::SharedAddress(barrier)), "r"(0), "r"(row), "h"(ctas)
      : "memory");
}

// multicast: each CTA asks for every other piece, for both. own: 1 reads memory beside it, 2 reads memory alone.
__global__ void __launch_bounds__(96, 1)
    CopyKernel(const uint8_t* set, const uint8_t* memory, const __grid_constant__ CUtensorMap map2,
               const __grid_constant__ CUtensorMap map5, int way, int multicast, int own, unsigned long long* own_pieces) {
  extern __shared__ __align__(1024) uint8_t bytes[];
  auto& s = *reinterpret_cast<Shared*>(bytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % 2, pair = blockIdx.x / 2;
  if (threadIdx.x == 0) {
    for (auto& b : s.full) ptx::BarrierInit(&b, 1);
    for (auto& b : s.free) ptx::BarrierInit(&b, multicast ? 2 : 1);
    for (auto& b : s.own_full) ptx::BarrierInit(&b, 1);
    s.over = 0;
    ptx::FenceBarrierInit();
  }
  ptx::ClusterArrive();
  ptx::ClusterWait();
  if (warp == 0 && own != 2) {
    for (int i = 0; i < kSteps; ++i) {
      const int stage = i % kSharedStages;
      ptx::BarrierWait(&s.free[stage], (i / kSharedStages & 1) ^ 1);
      if (lane == 0) ptx::BarrierArriveExpectBytes(&s.full[stage], kStageBytes);
      __syncwarp();
      const uint32_t piece = Mix(pair * 0x9e3779b9u + i) % (kSetBytes / kStageBytes) * kPiecesOfStage + lane;
      const uint8_t* from = set + int64_t{piece} * kPiece;
      const bool mine = lane < kPiecesOfStage && (!multicast || lane % 2 == rank);
      uint8_t* const to = s.set[stage] + lane * kPiece;
      const uint16_t ctas = 3;
      if (!mine) {
      } else if (way == kBulk && multicast) {
        ptx::BulkLoadMulticast(to, from, kPiece, &s.full[stage], ctas, ptx::kEvictNormal);
      } else if (way == kBulk) {
        ptx::BulkLoad(to, from, kPiece, &s.full[stage], ptx::kEvictNormal);
      } else {
        const CUtensorMap* const map = way == kMap2 ? &map2 : &map5;
        const int c1 = way == kMap2 ? piece * 32 : 0, c4 = way == kMap2 ? 0 : piece;
        if (multicast) {
          way == kMap2 ? TensorLoad2Multicast(to, map, &s.full[stage], c1, ctas)
                       : ptx::TensorLoad5Multicast(to, map, &s.full[stage], 0, 0, 0, 0, c4, ctas, ptx::kEvictNormal);
        } else {
          way == kMap2 ? TensorLoad2(to, map, &s.full[stage], c1)
                       : ptx::TensorLoad5(to, map, &s.full[stage], 0, 0, 0, 0, c4, ptx::kEvictNormal);
        }
      }
      __syncwarp();
    }
  } else if (warp == 1 && own != 2) {
    // As a dense tile's warps: lanes 0 and 1 release a stage to both CTAs.
    for (int i = 0; i < kSteps; ++i) {
      const int stage = i % kSharedStages;
      ptx::BarrierWait(&s.full[stage], i / kSharedStages & 1);
      const uint32_t free = ptx::SharedAddress(&s.free[stage]);
      if (!multicast) {
        if (lane == 0) ptx::BarrierArrive(free);
      } else if (lane < 2) {
        ptx::BarrierArriveCluster(ptx::ClusterAddress(free, lane));
      }
    }
    if (lane == 0) s.over = 1;
  } else if (warp == 2 && own != 0) {
    unsigned long long pieces = 0;
    uint32_t seed = Mix(blockIdx.x + 77);
    const auto load = [&](int stage) {
      if (lane == 0) ptx::BarrierArriveExpectBytes(&s.own_full[stage], kOwnStageBytes);
      __syncwarp();
      seed = Mix(seed + 0x9e3779b9u);
      const int64_t piece = int64_t{seed % static_cast<uint32_t>(kOwnBytes / kOwnStageBytes)} * kOwnPieces + lane;
      if (lane < kOwnPieces) {
        ptx::BulkLoad(s.own[stage] + lane * kPiece, memory + piece * kPiece, kPiece, &s.own_full[stage], ptx::kEvictFirst);
      }
    };
    for (int stage = 0; stage < kOwnStages; ++stage) load(stage);
    int i = 0;
    for (;; ++i) {
      const int stage = i % kOwnStages;
      ptx::BarrierWait(&s.own_full[stage], i / kOwnStages & 1);
      pieces += kOwnPieces;
      if (own == 2 ? i >= kSteps : __any_sync(~0u, s.over)) break;
      load(stage);
    }
    for (int left = 1; left < kOwnStages; ++left)
      ptx::BarrierWait(&s.own_full[(i + left) % kOwnStages], (i + left) / kOwnStages & 1);
    if (lane == 0) atomicAdd(own_pieces, pieces);
  }
  ptx::ClusterArrive();
  ptx::ClusterWait();
}

// Of the set, in rows of 128 bytes: boxes of 32 rows; or pages of 16 tokens of 256 bytes, a box as KV's have (tensor_map.cc).
CUtensorMap EncodeMap(void* set, bool five) {
  const auto encode = coppice::cuda::FindTensorMapEncoder().value();
  const cuuint64_t size2[2] = {64, kSetBytes / 128}, stride2[1] = {128};
  const cuuint64_t size5[5] = {64, 8, 2, 2, kSetBytes / kPiece}, stride5[4] = {256, 128, 2048, kPiece};
  const cuuint32_t box2[2] = {64, 32}, box5[5] = {64, 8, 2, 2, 1}, steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  COPPICE_CHECK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, five ? 5 : 2, set, five ? size5 : size2, five ? stride5 : stride2,
                       five ? box5 : box2, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                       CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
  return map;
}

int Main() {
  DeviceBuffer set = DeviceBuffer::Allocate(kSetBytes).value(), memory = DeviceBuffer::Allocate(kOwnBytes).value(),
               count = DeviceBuffer::Allocate(sizeof(unsigned long long)).value();
  const auto check = [](cudaError_t error) { COPPICE_CHECK(error == cudaSuccess); };
  check(cudaMemset(set.data(), 1, kSetBytes));
  check(cudaMemset(memory.data(), 1, kOwnBytes));
  check(cudaFuncSetAttribute(CopyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  const CUtensorMap map2 = EncodeMap(set.data(), false), map5 = EncodeMap(set.data(), true);
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  const auto measure = [&](int sms, int way, bool multicast, int own) {
    double best_ms = 1e9;
    unsigned long long pieces = 0;
    for (int repeat = 0; repeat < 4; ++repeat) {
      check(cudaMemset(count.data(), 0, sizeof(pieces)));
      cudaLaunchAttribute cluster{};
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim.x = 2, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
      cudaLaunchConfig_t config{};
      config.gridDim = dim3(sms), config.blockDim = dim3(96), config.dynamicSmemBytes = sizeof(Shared);
      config.attrs = &cluster, config.numAttrs = 1;
      check(cudaEventRecord(begin));
      check(cudaLaunchKernelEx(&config, CopyKernel, reinterpret_cast<const uint8_t*>(set.data()),
                               reinterpret_cast<const uint8_t*>(memory.data()), map2, map5, way, static_cast<int>(multicast), own,
                               reinterpret_cast<unsigned long long*>(count.data())));
      check(cudaEventRecord(end));
      check(cudaEventSynchronize(end));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end));
      if (ms < best_ms) {
        best_ms = ms;
        check(cudaMemcpy(&pieces, count.data(), sizeof(pieces), cudaMemcpyDeviceToHost));
      }
    }
    constexpr const char* kWays[] = {"bulk", "2-d map", "5-d map"};
    const double of_set = own == 2 ? 0 : double{kSteps} * kStageBytes / best_ms / 1e6;
    const double of_own = static_cast<double>(pieces) * kPiece / sms / best_ms / 1e6;
    std::printf("%5d %10s %10s %10s %14.1f %14.1f %10.2f\n", sms, own == 2 ? "-" : kWays[way],
                own == 2    ? "-"
                : multicast ? "multicast"
                            : "alone",
                own == 0 ? "-" : "memory", of_set, of_own, (of_set + of_own) * sms / 1e3);
    std::fflush(stdout);
  };
  std::printf("%5s %10s %10s %10s %14s %14s %10s\n", "SMs", "set", "", "own", "set GB/s/SM", "own GB/s/SM", "TB/s in");
  for (const int sms : {2, 16, 132}) {
    measure(sms, kBulk, false, 2);
    for (const int own : {0, 1}) {
      for (const int way : {kBulk, kMap2, kMap5}) {
        for (const bool multicast : {false, true}) measure(sms, way, multicast, own);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace coppice::attention::cuda::bench

int main() { return coppice::attention::cuda::bench::Main(); }
