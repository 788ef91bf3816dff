// The attention kernel of instructions that every GPU since sm_80 has: the same plan, tasks and merge as attention_kernel.cuh in
// one persistent launch, for what that one cannot do (other GPUs, head_dim above 128, odd page sizes). A CTA of
// four warps takes half a dense task or a stream task at a time; KV tiles come by cp.async, double-buffered. Hydragen section 3.1
// is the batching of rows, Cascade Inference the merge. Layer: attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/sm80_tile.cuh"
#include "attention/cuda/stress_delay.cuh"
#include "attention/plan_units.h"

namespace coppice::attention::cuda {

// Where the tokens of one item lie in the pool; looked up a tile ahead by the first kKvTile threads.
template <class C>
struct Sm80Tokens {
  int page_begin, first, end;  // first: the first tile's first kv index, a multiple of kKvTile

  // The page of this thread's token of a tile, or -1 past the end.
  __device__ __forceinline__ int PageOf(const KernelParams& p, int tile) const {
    const int position = first + tile * C::kKvTile + threadIdx.x;
    return threadIdx.x < C::kKvTile && position < end ? __ldg(p.page_indices + page_begin + position / p.page_size) : -1;
  }
  __device__ __forceinline__ void WriteOffset(const Sm80Params& params, Sm80Storage<C>& s, int tile, int page) const {
    if (threadIdx.x >= C::kKvTile) return;
    const int slot = (first + tile * C::kKvTile + threadIdx.x) % params.plan.page_size;
    s.token_offsets[tile % 2][threadIdx.x] = page < 0 ? -1 : page * params.page_stride + slot * params.slot_stride;
  }
};

// Resolves the rows and what they see of the item's range; gives where its tokens lie. All threads call.
template <class C>
__device__ __forceinline__ Sm80Tokens<C> ResolveRows(const KernelParams& p, Sm80Storage<C>& s, const Task& task, int first_row,
                                                     bool tree_mask) {
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kWarps = C::kRows / 32;
  const int t = threadIdx.x;
  if (t < C::kRows) {
    const RowInfo info = ResolveRow(p, task, p.branches[task.first.branch], first_row + t, tree_mask);
    s.rows[t] = info;
    const bool exists = info.q_row >= 0;
    const int lo_min = __reduce_min_sync(kAll, exists ? info.lo : INT32_MAX);
    const int hi_max = __reduce_max_sync(kAll, exists ? info.hi : 0);
    const int lo_max = __reduce_max_sync(kAll, exists ? info.lo : 0);
    // Below a draft tree's own queries every row sees all.
    const int hi_min = __reduce_min_sync(kAll, exists ? (tree_mask ? info.hi - info.query_count : info.hi) : INT32_MAX);
    if (t % 32 == 0) s.rows_see[t / 32] = {.begin = lo_min, .end = hi_max, .full_begin = lo_max, .full_end = hi_min};
  }
  __syncthreads();  // every warp of rows has said what it sees
  const DeviceItem& item = task.item;
  const int end = min(item.kv_end, p.branches[item.branch].kv_len);
  Sm80Range range{item.kv_begin, end, item.kv_begin, end};
  if (item.masked) {
    Sm80Range seen = s.rows_see[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const Sm80Range& other = s.rows_see[w];
      seen = {min(seen.begin, other.begin), max(seen.end, other.end), max(seen.full_begin, other.full_begin),
              min(seen.full_end, other.full_end)};
    }
    range = {max(item.kv_begin, seen.begin), min(end, seen.end), max(item.kv_begin, seen.full_begin), min(end, seen.full_end)};
  }
  if (t == 0) s.range = range;  // the barriers before the first tile order it
  return {item.page_begin, range.begin / C::kKvTile * C::kKvTile, range.end};
}

// Draws the tickets of this CTA's sets under one kv head, and folds those that are complete. A barrier is before it.
template <class C>
__device__ __forceinline__ void CompleteSets(const KernelParams& p, Sm80Storage<C>& s, int kv_head, bool deterministic) {
  using T = typename C::Element;
  constexpr unsigned kAll = 0xffffffffu;
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  if (t < C::kRows) {
    const RowInfo& info = s.rows[t];
    const bool draws = info.q_row >= 0 && info.state != kDirect && (info.row_in_set == 0 || t == 0);
    s.completes[t] = draws && ArriveLast(p, info.set, kv_head, info.arrivals);
  }
  __syncthreads();  // `completes` is written
  const bool any = s.completes[lane] | s.completes[lane + 32];
  if (!__any_sync(kAll, any)) return;
  // A set may reach into the task's other half; the half that completes it folds all of its rows, those before row 0 and those
  // after the last too.
  const auto completed = [&](int row) {
    const RowInfo& info = s.rows[row];
    return info.q_row >= 0 && info.state != kDirect && s.completes[max(0, row - info.row_in_set)];
  };
  const RowInfo& last = s.rows[C::kRows - 1];
  const int begin = completed(0) ? -s.rows[0].row_in_set : 0;
  const int end = C::kRows + (completed(C::kRows - 1) ? last.rows_in_set - 1 - last.row_in_set : 0);
#pragma unroll 1
  for (int base = begin + warp * 4; base < end; base += C::kWarps * 4) {
    const int row = base + lane / 8, held = min(max(row, 0), C::kRows - 1);
    FoldRow fold{};
    if (row < end && completed(held)) fold = RowToFold(p, s.rows[held], s.rows[held].row_in_set + row - held, kv_head);
    if (!__any_sync(kAll, fold.count != 0)) continue;
    if (deterministic) {
      FoldRowsDeterministic<T, C::kHeadDim>(p, fold, kv_head);
    } else {
      FoldRows<T, C::kHeadDim, 2>(p, fold, kv_head, ContributionOf(p, fold, 0));
    }
  }
}

// One item's rows under one kv head, from its tokens to its states or output.
template <class C>
__device__ __forceinline__ void RunHead(const Sm80Params& params, Sm80Storage<C>& s, const Sm80Tokens<C>& tokens, int rows,
                                        int kv_head, bool tree_mask) {
  const KernelParams& p = params.plan;
  const int num_tiles = tokens.end > tokens.first ? (tokens.end - tokens.first + C::kKvTile - 1) / C::kKvTile : 0;
  const bool computes = static_cast<int>(threadIdx.x) / 32 * 16 < rows;
  tokens.WriteOffset(params, s, 0, tokens.PageOf(p, 0));
  int next_page = tokens.PageOf(p, 1);
  __syncthreads();  // the first offsets are there; Q and KV of the task before are read
  LoadQ(params, s, rows, kv_head);
  if (num_tiles > 0) LoadKv(params, s, 0, kv_head);

  Sm80Rows<C> state(s);
  // One unit, or in deterministic mode all that the range has (docs/numerics.md, "What an item computes").
  const bool deterministic = params.folds != nullptr;
  const auto kept = [&](int slot) { return params.folds + (int64_t{blockIdx.x} * C::kKeptStates + slot) * C::kStateFloats; };
  constexpr int kUnitSlot = 2;
  int superblock_slot = 0;  // the row's is the other one of 0 and 1
  bool superblock_kept = false, row_kept = false;
  for (int i = 0; i < num_tiles;) {
    const int position = tokens.first + i * C::kKvTile;
    const int unit_tiles = deterministic ? (kDeterministicUnit - position % kDeterministicUnit) / C::kKvTile : num_tiles;
    const int unit_end = min(num_tiles, i + unit_tiles);
    for (; i < unit_end; ++i) {
      ptx::CopyAsyncWaitAll();
      tokens.WriteOffset(params, s, i + 1, next_page);
      __syncthreads();  // tile i (and Q) is there, tile i - 1 is read, the offsets of tile i + 1 are there
      if (i + 1 < num_tiles) LoadKv(params, s, i + 1, kv_head);
      next_page = tokens.PageOf(p, i + 2);
      if (computes) state.Add(p, s, i % C::kStages, tokens.first + i * C::kKvTile, tree_mask);
    }
    if (!computes) continue;
    state.Close(p.score_scale_log2);
    const bool last = i == num_tiles;
    if (last && !superblock_kept && !row_kept) break;  // a single unit is its own fold
    state.Keep(kept(superblock_kept ? kUnitSlot : superblock_slot));
    if (superblock_kept) state.FoldKept(kept(superblock_slot), kept(kUnitSlot));
    superblock_kept = true;
    if (last || (tokens.first + i * C::kKvTile) % kDeterministicSuperblock == 0) {
      if (row_kept) {
        state.FoldKept(kept(superblock_slot ^ 1), kept(superblock_slot));
      } else {
        superblock_slot ^= 1;  // the first superblock is the row so far
      }
      superblock_kept = false, row_kept = true;
    }
    if (last) {
      state.Recall(kept(superblock_slot ^ 1));
    } else {
      state.Clear();
    }
  }
  ptx::CopyAsyncWaitAll();  // Q of an item without tokens
  if (computes) state.Store(p, s, kv_head);
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kCtasPerSm) Sm80Kernel(const __grid_constant__ Sm80Params params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<Sm80Storage<C>*>(memory);
  constexpr int kHalves = kDenseRows / C::kRows;
  const KernelParams& p = params.plan;
  const PlanHeader header = *p.header;
  const bool tree_mask = header.has_tree_mask != 0;
  const int dense_units = kHalves * header.num_dense_tasks, units = dense_units + header.num_stream_tasks;
  int place = 0;  // of the next unit: two in turn, since a unit without rows has no other barrier between writing and reading
  for (int unit = blockIdx.x; unit < units; place ^= 1) {  // the first unit needs no drawing
    const int drawn = threadIdx.x == 0 ? static_cast<int>(gridDim.x) + atomicAdd(&p.counters->dense_next, 1) : 0;
    const bool dense = unit < dense_units;
    const Task task = dense ? p.dense_tasks[unit / kHalves] : p.stream_tasks[unit - dense_units];
    const DeviceItem& item = task.item;
    const int first_row = dense ? unit % kHalves * C::kRows : 0, rows = min(item.rows - first_row, C::kRows);
    if (rows > 0) {
      const Sm80Tokens<C> tokens = ResolveRows<C>(p, s, task, first_row, tree_mask);
      for (int head = item.head_begin; head < item.head_begin + item.head_count; ++head) {
        RunHead<C>(params, s, tokens, rows, head, tree_mask);
        StressDelay<C>();
        __syncthreads();  // all states are stored
        CompleteSets<C>(p, s, head, params.folds != nullptr);
      }
    }
    if (threadIdx.x == 0) s.next_unit[place] = drawn;
    __syncthreads();  // the next unit is known, this one's rows are read
    unit = s.next_unit[place];
  }
  if (threadIdx.x == 0 && FinishesLast(p)) p.counters->dense_next = p.counters->finished_ctas = 0;
}

}  // namespace coppice::attention::cuda
