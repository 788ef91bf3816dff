// The kernel: one persistent CTA per SM whose warpgroups take roles, one launch per layer for the whole work list.
// Warpgroup 0 loads for the dense tiles and looks up the tasks of the stream tiles; 1 and 2 compute the dense tiles, and turn to
// stream tiles once no dense task is left. No item waits for another, no CTA for another. Layer: attention/cuda.
#pragma once

#include "attention/cuda/deterministic_dense_tile.cuh"
#include "attention/cuda/deterministic_stream_tile.cuh"
#include "attention/cuda/overlapped_stream.cuh"

namespace coppice::attention::cuda {

inline constexpr size_t kLine = 128;                                      // bytes of the L2
inline constexpr int kMemberLines = 4;                                    // that a CTA asks for beside the header
static_assert(kMemberLines * kLine <= kStreamWarpsPerSm * sizeof(Task));  // what PlanLayout leaves room for

// Brings this CTA's part of the plan and of Q to the L2 in a few instructions, ahead of the chains of dependent look-ups, each of
// which would wait behind the stream of KV. Q only where it is small beside the L2.
__device__ __forceinline__ void PrefetchPlan(const KernelParams& p, const PlanHeader& header) {
  constexpr int64_t kMostQBytes = 8 << 20;
  const int64_t q_bytes = header.num_queries * p.q_row_stride * 2;
  const void* array = nullptr;
  int64_t bytes = 0;
  switch (threadIdx.x % 32) {  // an array a lane
    case 0: array = p.branches, bytes = int64_t{header.num_branches} * sizeof(DeviceBranch); break;
    case 1: array = p.dense_tasks, bytes = int64_t{header.num_dense_tasks} * sizeof(Task); break;
    case 2: array = p.stream_tasks, bytes = int64_t{header.num_stream_tasks} * sizeof(Task); break;
    case 3: array = p.members, bytes = int64_t{header.num_members} * sizeof(DeviceMember); break;
    case 4: array = p.contributions, bytes = int64_t{header.num_contributions} * sizeof(DeviceContribution); break;
    case 5: array = p.q, bytes = q_bytes <= kMostQBytes ? q_bytes : 0; break;
    default: break;
  }
  const uint32_t blocks = static_cast<uint32_t>(bytes >> 8) + 1, part = (blocks + gridDim.x - 1) / gridDim.x;  // of 256 bytes
  const int64_t begin = int64_t{part * blockIdx.x} << 8;
  const int64_t size = min(int64_t{part} << 8, bytes - begin) & ~int64_t{15};
  if (size > 0) ptx::PrefetchL2(static_cast<const uint8_t*>(array) + begin, static_cast<uint32_t>(size));
}

// Beside the header, not after it: what the first look-ups read, where the plan is small or gives this CTA no dense task. An
// address past what the plan holds brings a line without a reader.
__device__ __forceinline__ void PrefetchFirst(const KernelParams& p) {
  const int lane = threadIdx.x % 32, cta = blockIdx.x;
  const void* line = nullptr;
  if (lane < kStreamWarpsPerSm) {
    line = p.stream_tasks + lane * gridDim.x + cta;
  } else {
    switch (lane - kStreamWarpsPerSm) {
      case 0: line = p.dense_tasks + cta; break;
      case 1: line = p.branches + cta * (kLine / sizeof(DeviceBranch)); break;
      case 2: line = p.contributions + cta * (kLine / sizeof(DeviceContribution)); break;
      case 3: line = p.page_indices + min(cta * static_cast<int>(kLine / sizeof(int32_t)), p.num_page_slots - 1); break;
      case 4: line = p.counters; break;
      default: break;
    }
    if (const int i = lane - 2 * kStreamWarpsPerSm; i >= 0 && i < kMemberLines) {
      line = p.members + (i * gridDim.x + cta) * (kLine / sizeof(DeviceMember));
    }
  }
  if (line != nullptr) ptx::PrefetchL2Line(line);
}

// The number by which a CTA takes its first tasks. Blocks are placed GPC by GPC, and the SMs of a GPC, and of a half of the card,
// share a path to the L2. So numbers next to each other are far apart: where some CTAs stream and others compute, or few have a
// task at all, each GPC has its part. Only the two SMs of a TPC keep together, whose tasks mostly read the same KV.
__device__ __forceinline__ int SpreadCta(const KernelParams& p, uint32_t block) {
  const uint32_t pair = block / 2, pairs = gridDim.x / 2;
  return static_cast<int>(pair < pairs ? 2 * __umulhi(pair * p.spread_step, pairs) + block % 2 : block);
}

template <class C>
__device__ __forceinline__ void InitStream(StreamState<C>& stream) {
  for (int i = 0; i < C::kStreamSlots; ++i) {
    ptx::BarrierInit(&stream.wanted[i], 1);
    ptx::BarrierInit(&stream.known[i], kStreamRows);
  }
  for (int i = 0; i < 2 * C::kStreamSteps; ++i) ptx::BarrierInit(&stream.ready[i / 2][i % 2], C::kCopyArrivals);
  ptx::BarrierInit(&stream.shared_ready, 1);
  ptx::FenceBarrierInit();
}

template <class C>
__device__ __forceinline__ void InitOverlapped(SharedStorage<C>& s) {
  for (int i = 0; i < C::kOverlappedSlots; ++i) {
    ptx::BarrierInit(&s.overlapped.known[i], 32);
    ptx::BarrierInit(&s.overlapped.done[i], kWarpgroup / 32 + 2);
  }
  for (int i = 0; i < C::kOverlappedUnits; ++i) {
    ptx::BarrierInit(&s.overlapped.ready[i], C::kCopyArrivals);
    ptx::BarrierInit(&s.overlapped.free[i], kWarpgroup / 32);
  }
  ptx::BarrierInit(&s.overlapped.q_ready, 32);
  ptx::BarrierInit(&s.overlapped.stored, kWarpgroup);
  ptx::BarrierInit(&s.overlapped.noted, 1);
  s.overlapped.dense_drawn_out = 0;
  s.overlapped.dense_tokens = s.overlapped.dense_tokens_copied = s.overlapped.tokens_copied = 0;
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    AttentionKernel(const __grid_constant__ ParamsOf<C> p, const __grid_constant__ CUtensorMap k_map,
                    const __grid_constant__ CUtensorMap v_map) {
  extern __shared__ __align__(1024) uint8_t memory[];
  cudaTriggerProgrammaticLaunchCompletion();  // the next kernel may start, if it waits for this one as this one does below
  auto& s = *reinterpret_cast<SharedStorage<C>*>(memory);
  const int warpgroup = threadIdx.x / kWarpgroup, warp = threadIdx.x / 32;
  const KvMaps maps{&k_map, &v_map};
  if (warp == 1) PrefetchFirst(p);
  if (threadIdx.x == 0) {
    if constexpr (!C::kOverlapsDecode) {
      for (uint64_t& ready : s.q_ready) ptx::BarrierInit(&ready, C::kGatherers * 32);
    }
    for (int i = 0; i < C::kTaskSlots; ++i) {
      ptx::BarrierInit(&s.task_known[i], 32);
      ptx::BarrierInit(&s.task_done[i], kDenseWarpgroups * 4 + C::kKvLoaders);  // the dense warps, and those that load KV
    }
    for (int i = 0; i < C::kStages; ++i) {
      ptx::BarrierInit(&s.k_ready[i], C::kCopyArrivals);
      ptx::BarrierInit(&s.v_ready[i], C::kCopyArrivals);
      ptx::BarrierInit(&s.k_free[i], kDenseWarpgroups * 4);
      ptx::BarrierInit(&s.v_free[i], kDenseWarpgroups * 4);
    }
    s.drawers_done = 0;
    if constexpr (C::kOverlapsDecode) InitOverlapped<C>(s);
    ptx::FenceBarrierInit();
    ptx::PrefetchTensorMap(&k_map);
    ptx::PrefetchTensorMap(&v_map);
  }
  if constexpr (!C::kOverlapsDecode) {
    if (warp >= 4 && threadIdx.x % 32 == 0) InitStream(s.stream[warp - 4]);  // each stream warp's own
  }
  // Not sooner: ptxas puts the fields into uniform registers at once, which waits for them, and with them what comes after.
  const PlanHeader header = *p.header;
  const bool tree_mask = header.has_tree_mask != 0;
  // The plan is there since before the step's first kernel. Below, what the kernel before this one wrote is read.
  cudaGridDependencySynchronize();
  __syncthreads();  // barriers are initialised

  if (warpgroup == 0) {
    const int cta = SpreadCta(p, blockIdx.x), busy = min(header.num_dense_tasks, header.dense_ctas), idle = gridDim.x - busy;
    const bool has_overlap = header.overlapped != 0 && cta < busy;
    ptx::DecreaseRegisters<C::kProducerRegisters>();
    const bool loads_dense = C::kOverlapsDecode || cta < busy;  // with overlapped tiles no register is left to know
    if (!loads_dense) {
      if (warp == 1) EndDenseTasks(s, 0);
    } else if (warp == 0 || (C::kGathers && warp == 3)) {
      if constexpr (C::kGathers) {
        GatherDenseKv<C>(p, maps, s, /*is_v=*/warp == 3);
      } else {
        LoadDenseKv<C>(p, maps, s);
      }
    } else if (warp == 1) {
      if constexpr (C::kOverlapsDecode) {
        LoadTasksWithOverlap<C>({p, s, cta, header.num_dense_tasks, header.dense_ctas, tree_mask},
                                {p, s, C::kStreamWarps * idle, header.num_stream_tasks, tree_mask}, has_overlap);
      } else {
        LoadDenseTasks<C>(p, s, cta, header.num_dense_tasks, header.dense_ctas, tree_mask);
      }
    } else if constexpr (C::kOverlapsDecode) {
      if (warp == 2) {
        if (has_overlap) CompleteOverlappedTiles<C>(p, s);
      } else if (has_overlap) {
        LoadOverlapped<C>(p, maps, s);
      }
    } else {
      GatherQ<C>(p, s, warp - 2);
    }
    // The last copy for a dense tile is under way, so the workers will soon begin a stream task that is drawn now.
    if (loads_dense) {
      ptx::NamedBarrierSync(kDenseLoadedBarrier,
                            C::kOverlapsDecode ? 2 * kWarpgroup : kWarpgroup);  // and the last overlapped tile is over
    }
    if constexpr (C::kOverlapsDecode) {
      if (threadIdx.x % 32 < 2) InitStream(s.stream[warp * 2 + threadIdx.x % 32]);
      __syncwarp();
      ptx::NamedBarrierArrive(kDenseOverBarrier, (1 + kDenseWarpgroups) * kWarpgroup);
    }
    // CTAs without a dense task begin at once: an even deal beats a race, which the warps of some SMs would win together.
    // Worked out again where the copies before left no registers to keep them in.
    const int own = C::kGathers ? SpreadCta(p, ptx::Here(blockIdx.x)) : cta,
              dense = C::kGathers ? min(ptx::Here(header.num_dense_tasks), header.dense_ctas) : busy;
    const int streaming = C::kGathers ? gridDim.x - dense : idle;
    const int worker = warp * 2 + threadIdx.x / kStreamRows % 2;
    const bool cooperative = header.cooperative != 0;
    const int first_task = cooperative ? own : own < dense ? -1 : worker * streaming + own - dense;
    LoadStreamTasks<C>(p, s, warp, first_task, C::kStreamWarps * streaming, header.num_stream_tasks, tree_mask, cooperative);
    FinishDrawing(p, s);
  } else if (C::kOverlapsDecode && warpgroup == 3) {
    if constexpr (C::kOverlapsDecode) {
      ptx::DecreaseRegisters<C::kOverlappedRegisters>();
      if (header.overlapped != 0 && SpreadCta(p, blockIdx.x) < min(header.num_dense_tasks, header.dense_ctas))
        OverlappedTile<C>{p, s, tree_mask}.Run();
      ptx::FenceProxyAsync();  // ordinary accesses to memory that the copy engine fills from here on
      ptx::NamedBarrierArrive(kDenseLoadedBarrier, 2 * kWarpgroup);
    }
  } else {
    ptx::IncreaseRegisters<C::kDenseRegisters>();
    if (warp == 4) PrefetchPlan(p, header);
    if constexpr (C::kDeterministic) {
      DeterministicDenseTile<C>::Run(p, s, ptx::Uniform(warpgroup - 1), tree_mask);
    } else {
      DenseTile<C>::Run(p, s, ptx::Uniform(warpgroup - 1), tree_mask);
    }
    ptx::FenceProxyAsync();  // ordinary writes to the dense tiles' memory before the copy engine's, which follow
    ptx::NamedBarrierSync(kDenseOverBarrier, (C::kOverlapsDecode + kDenseWarpgroups) * kWarpgroup);
    const int worker = warp - 4;
    // KV of dense tiles takes the room in the L2 that earlier work left taken; without them, the first steps do.
    const int steps_to_claim = header.num_dense_tasks == 0 ? kStepsToClaimL2 : 0;
    if constexpr (C::kDeterministic) {
      DeterministicStreamWorker<C>(p, maps, s, worker, tree_mask, steps_to_claim).Run();
    } else {
      StreamWorker<C>(p, maps, s, worker, tree_mask, header.cooperative ? C::kStreamWarps : 1, steps_to_claim).Run();
    }
  }
}

}  // namespace coppice::attention::cuda
