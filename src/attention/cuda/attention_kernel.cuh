// The kernel: one persistent CTA per SM whose warpgroups take roles, one launch per layer for the whole work list.
// Warpgroup 0 loads for the dense tiles, 1 and 2 compute them; stream tiles run in warpgroup 3 beside them (Config::kConcurrent)
// and in warpgroups 1 and 2 once no dense task is left. No item waits for another, no CTA for another. POD-Attention section 4 is
// the idea of mixing both kinds on an SM. Layer: attention/cuda.
#pragma once

#include "attention/cuda/dense_tile.cuh"
#include "attention/cuda/stream_tile.cuh"

namespace coppice::attention::cuda {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    AttentionKernel(const __grid_constant__ KernelParams p, const __grid_constant__ CUtensorMap k_map,
                    const __grid_constant__ CUtensorMap v_map) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<SharedStorage<C>*>(memory);
  const int warpgroup = threadIdx.x / kWarpgroup, warp = threadIdx.x / 32;
  const PlanHeader header = *p.header;
  const bool tree_mask = header.has_tree_mask != 0;
  const KvMaps maps{&k_map, &v_map};
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kQBuffers; ++i) {
      ptx::BarrierInit(&s.task_known[i], 32);
      ptx::BarrierInit(&s.q_ready[i], kGatherers * 32);
      ptx::BarrierInit(&s.task_done[i], kDenseWarpgroups * 4 + 1);  // the dense warps, and the warp that loads KV
    }
    for (int i = 0; i < C::kStages; ++i) {
      ptx::BarrierInit(&s.k_ready[i], 1);
      ptx::BarrierInit(&s.v_ready[i], 1);
      ptx::BarrierInit(&s.k_free[i], kDenseWarpgroups * 4);
      ptx::BarrierInit(&s.v_free[i], kDenseWarpgroups * 4);
    }
    s.fetchers_done = 0;
    ptx::FenceBarrierInit();
    ptx::PrefetchTensorMap(&k_map);
    ptx::PrefetchTensorMap(&v_map);
  }
  __syncthreads();  // barriers are initialised

  if (warpgroup == 0) {
    ptx::DecreaseRegisters<C::kProducerRegisters>();
    if (warp == 0) {
      LoadDenseKv<C>(p, maps, s);
    } else if (warp == 1) {
      LoadDenseTasks<C>(p, s, header.num_dense_tasks, tree_mask);
    } else {
      GatherQ<C>(p, s, warp - 2);
    }
  } else if (warpgroup <= kDenseWarpgroups) {
    ptx::IncreaseRegisters<C::kDenseRegisters>();
    DenseTile<C>::Run(p, s, warpgroup - 1, tree_mask);
    ptx::FenceProxyAsync();  // ordinary writes to the dense tiles' memory before the copy engine's, which follow
    ptx::NamedBarrierSync(kDenseOverBarrier, kDenseOverThreads);
    const int worker = warp - 4;
    // CTAs without a dense task begin at once: an even deal beats a race, which the warps of some SMs would win together.
    const int ctas = gridDim.x, busy = C::kConcurrent ? ctas : min(header.num_dense_tasks, ctas), idle = ctas - busy;
    const int first_task = static_cast<int>(blockIdx.x) < busy ? -1 : worker * idle + blockIdx.x - busy;
    StreamWorker<C, C::kTailSteps>(p, maps, s.tail[worker], s.tail_rings[worker], header.num_stream_tasks, tree_mask)
        .Run(first_task, C::kTailWarps * idle);
    FinishFetching(p, s);
  } else {
    if constexpr (C::kConcurrent) {
      ptx::IncreaseRegisters<C::kStreamRegisters>();
      const int worker = warp - 4 * (1 + kDenseWarpgroups);
      StreamWorker<C, C::kStreamSteps>(p, maps, s.stream[worker], s.stream_rings[worker], header.num_stream_tasks, tree_mask)
          .Run(-1, 0);
      FinishFetching(p, s);
    }
  }
}

}  // namespace coppice::attention::cuda
