// Overlapped tiles: at most eight rows against a run of KV, while the same CTA computes dense tiles, so that an SM's tensor cores
// and its copy path work at the same moment (POD-Attention's aim, section 3, within one CTA). A fourth warpgroup multiplies with KV
// as the left operand of wgmma, straight from shared memory (S^T = K Q^T, O^T = V^T P^T): a step of 64 tokens takes four registers
// of scores and eight of output a thread, so the dense warpgroups keep theirs. One loading warp draws its tasks from the queue of
// the stream tiles and copies their KV, until the dense tiles are nearly done. Layer: attention/cuda.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/dense_tile.cuh"
#include "attention/cuda/load.cuh"

namespace coppice::attention::cuda {

// Dense tokens that are computed while an overlapped tile takes one (12 and 32 ns): overlapped tiles end before the dense ones do.
inline constexpr int kDenseTokensPerOverlappedToken = 3;

// ---- The loading warp.

// Looks tasks up for the slots of the overlapped tiles.
template <class C>
struct OverlappedTaskLoader {
  const KernelParams& p;
  SharedStorage<C>& s;
  const int drawn_from, num_tasks;  // as of LoadStreamTasks; plans with overlapped tiles have stream tasks
  const bool tree_mask;
  int n = 0;
  int drawn_tokens = 0, longest = 0;  // of tasks drawn; of the next, which is no longer than the last, for they are sorted

  __device__ __forceinline__ uint64_t* free_barrier() const { return &s.overlapped.done[n % C::kOverlappedSlots]; }
  __device__ __forceinline__ uint32_t free_parity() const { return (n / C::kOverlappedSlots & 1) ^ 1; }

  __device__ __forceinline__ int TokensOf(const DeviceItem& item) const {
    return max(0, min(item.kv_end, __ldg(&p.branches[item.branch].kv_len)) - item.kv_begin) * item.head_count;
  }

  // The next task to its slot, which is free, if there is one that ends before the dense tiles do. The same in all lanes.
  __device__ bool Load() {
    const int lane = threadIdx.x % 32, row = lane % kStreamRows, place = n % C::kOverlappedSlots;
    auto& overlapped = s.overlapped;
    ++n;
    int index = 0;
    if (n == 1) longest = TokensOf(LoadPlan(&p.stream_tasks[min(drawn_from, num_tasks - 1)].item));  // the longest
    const int tokens = drawn_tokens - overlapped.tokens_copied + longest;
    bool exists = !overlapped.dense_drawn_out ||
                  overlapped.dense_tokens - overlapped.dense_tokens_copied > kDenseTokensPerOverlappedToken * int64_t{tokens};
    exists = __all_sync(kAllLanes, exists);
    if (exists) {
      if (lane == 0) index = drawn_from + atomicAdd(&p.counters->stream_next, 1);
      index = __shfl_sync(kAllLanes, index, 0);
      exists = index < num_tasks;
    }
    Task task{};
    if (exists) task = LoadPlan(p.stream_tasks + index);
    const DeviceItem& item = task.item;
    const DeviceBranch first_branch = LoadBranch(p, task.first.branch);
    const int kv_len = __ldg(&p.branches[item.branch].kv_len);
    const int pages_from = PagesFrom<C>(p, item);
    const int page = HeldPage<C>(p, item, pages_from + lane);
    const RowInfo info = ResolveRow(p, task, first_branch, row, tree_mask);
    RowRanges ranges;
    ranges.Add(info, tree_mask);
    ranges.Combine<kStreamRows>();
    OverlappedSlot& slot = overlapped.slots[place];
    if (lane < kOverlappedRows) slot.rows[row] = info;
    slot.pages[lane] = page;
    longest = TokensOf(item);
    drawn_tokens += longest;
    if (lane == 0) slot.task = ResolvedTask(item, exists, ranges, kv_len, C::kStreamAlignment, pages_from);
    ptx::BarrierArrive(&overlapped.known[place]);
    __syncwarp();
    return exists;
  }
};

__device__ __forceinline__ bool Reached(uint64_t* barrier, uint32_t parity) {
  return __all_sync(kAllLanes, ptx::BarrierTest(barrier, parity));
}

// One warp: the dense tasks, and those of the overlapped tiles meanwhile.
template <class C>
__device__ void LoadTasksWithOverlap(DenseTaskLoader<C> dense, OverlappedTaskLoader<C> overlapped, bool has_overlap) {
  bool has_dense = true;
  while (has_dense || has_overlap) {
    if (has_dense && Reached(dense.free_barrier(), dense.free_parity())) {
      has_dense = dense.Load();
    } else if (has_overlap && Reached(overlapped.free_barrier(), overlapped.free_parity())) {
      has_overlap = overlapped.Load();
    } else {
      __nanosleep(100);
    }
  }
}

// Copies K or V of the tokens from `position` on, a box a lane.
template <class C>
__device__ __forceinline__ void LoadOverlappedUnit(const KernelParams& p, const CUtensorMap* map, const OverlappedSlot& slot,
                                                   int head, int position, uint64_t* ready, uint8_t* to) {
  const int lane = threadIdx.x % 32;
  const int boxes = min(C::kOverlappedTokens >> p.box_shift, (slot.task.range.end - position + p.box_tokens - 1) >> p.box_shift);
  if (lane == 0) ptx::BarrierArriveExpectBytes(ready, (boxes << p.box_shift) * C::kHeadDim * 2);
  __syncwarp();  // the barrier expects the bytes before any arrive
  if (lane >= boxes) return;
  const int at = position + (lane << p.box_shift), number = at >> p.page_shift, held = number - slot.task.pages_from;
  const int page = held < kPagesHeld ? slot.pages[held] : __ldg(p.page_indices + slot.task.page_begin + number);
  LoadBox(p, map, ready, to + (lane << p.box_shift) / 8 * C::kGroupBytes, UnitOf(p, page, head), at, C::kHeadChunks, C::kGroupBytes,
          slot.task.read_once ? ptx::kEvictFirst : ptx::kEvictNormal);
}

// Starts the copies of the Q rows of a task under one kv head.
template <class C>
__device__ __forceinline__ void LoadOverlappedQ(const KernelParams& p, const OverlappedSlot& slot, int head, uint8_t* to) {
  using T = typename C::Element;
  constexpr int kPieces = C::kHeadDim / 8;
  const int lane = threadIdx.x % 32, piece = lane % kPieces;
#pragma unroll
  for (int row = lane / kPieces; row < kOverlappedRows; row += 32 / kPieces) {
    const RowInfo& info = slot.rows[row];
    const bool exists = info.q_row >= 0 && piece * 8 < p.head_dim;
    const T* from = static_cast<const T*>(p.q);
    if (exists) from += info.q_row * p.q_row_stride + int64_t{head * p.group_size + info.head_in_group} * p.head_dim + piece * 8;
    ptx::CopyAsync16(ptx::SharedAddress(to + piece / 8 * 1024 + row * 128 + ((piece % 8) ^ row) * 16), from, exists ? 16 : 0);
  }
}

// One warp: Q and KV of the overlapped tiles, as fast as the ring empties.
template <class C>
__device__ void LoadOverlapped(const KernelParams& p, KvMaps maps, SharedStorage<C>& s) {
  auto& overlapped = s.overlapped;
  RingCursor<C::kOverlappedUnits> unit{.parity = 1};  // of `free`, whose first phase counts as complete
  const auto load = [&](bool is_v, const OverlappedSlot& slot, int head, int position) {
    const CUtensorMap* const map = is_v ? maps.v : maps.k;
    ptx::BarrierWait(&overlapped.free[unit.stage], unit.parity);
    LoadOverlappedUnit<C>(p, map, slot, head, position, &overlapped.ready[unit.stage], overlapped.units[unit.stage]);
    unit.Advance();
  };
  for (int n = 0;; ++n) {
    const OverlappedSlot& slot = overlapped.slots[n % C::kOverlappedSlots];
    ptx::BarrierWait(&overlapped.known[n % C::kOverlappedSlots], n / C::kOverlappedSlots & 1);
    const int first = slot.task.first, end = slot.task.range.end, head_end = slot.task.head_end;
    if (head_end < 0) return;
    for (int head = slot.task.head_begin; head < head_end; ++head) {
      for (int position = first; position < end; position += C::kOverlappedTokens) {
        StressDelay<C>();
        load(/*is_v=*/false, slot, head, position);
        load(/*is_v=*/true, slot, head, position);
        if (threadIdx.x % 32 == 0) overlapped.tokens_copied += min(C::kOverlappedTokens, end - position);
        if (position == first) {
          // The last product of scores has left Q's place: its K, two or three units ago, has left the place of this V or of K.
          static_assert(C::kOverlappedUnits <= 3);
          LoadOverlappedQ<C>(p, slot, head, overlapped.q);
          ptx::CopyAsyncWaitAll();
          ptx::FenceProxyAsync();  // Q, written by ordinary copies, is read by wgmma
          ptx::BarrierArrive(&overlapped.q_ready);
        }
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::BarrierArrive(&overlapped.done[n % C::kOverlappedSlots]);  // its pages are read
  }
}

// ---- The computing warpgroup.

template <class C>
struct OverlappedTile {
  using S = SharedStorage<C>;
  using T = typename C::Element;
  static constexpr int kBlocks = C::kHeadDim / 64;  // of the output: wgmma's M

  const KernelParams& p;
  SharedStorage<C>& s;
  const bool tree_mask;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;

  // Of the rows lane % 4 * 2 and the next. scores: tokens warp * 16 + lane / 4 (+ 8 for elements 2, 3). out: elements
  // block * 64 + warp * 16 + lane / 4 (+ 8).
  float out[kBlocks][4];
  float reference[2];  // a score, not scaled, that weights and sums are relative to; the same in all warps
  float sum[2];        // of this thread's tokens
  RingCursor<C::kOverlappedUnits> unit;

  __device__ __forceinline__ int RowOf(int c) const { return lane % 4 * 2 + c; }
  __device__ __forceinline__ void Sync() const { ptx::NamedBarrierSync(kOverlappedBarrier, kWarpgroup); }

  // Of the ring's unit.
  __device__ __forceinline__ uint32_t Unit() const {
    return ptx::SharedAddress(s.overlapped.units) + unit.stage * C::kOverlappedUnitBytes;
  }
  __device__ __forceinline__ void Await() const { ptx::BarrierWait(&s.overlapped.ready[unit.stage], unit.parity); }
  __device__ __forceinline__ void Leave() {
    if (lane == 0) ptx::BarrierArrive(&s.overlapped.free[unit.stage]);
    unit.Advance();
  }

  __device__ __forceinline__ void Score(float (&scores)[4]) {
#pragma unroll
    for (float& x : scores) x = 0.0f;
    ptx::PinRegisters(scores);
    ptx::WgmmaFence();
    const uint64_t a = MatrixDescriptor(ptx::Uniform(Unit()), 16, C::kGroupBytes);
    const uint64_t b = MatrixDescriptor(ptx::Uniform(ptx::SharedAddress(s.overlapped.q)), 16, 1024);
#pragma unroll
    for (int step = 0; step < C::kHeadDim / 16; ++step) {
      const int at = (step / 4 * 1024 + step % 4 * 32) / 16;
      ptx::Wgmma<T, 8>::Ss(scores, a + at, b + at, step != 0);
    }
    ptx::WgmmaCommit();
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(scores);
  }

  __device__ __forceinline__ void Mask(const OverlappedSlot& slot, int start, float (&scores)[4]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const VisibleRange visible(p, slot.rows[RowOf(c)], slot.task.range.begin, slot.task.range.end, tree_mask);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!visible.Has(start + warp * 16 + lane / 4 + i * 8)) scores[i * 2 + c] = -INFINITY;
      }
    }
  }

  // Moves the references that must, with the first 32 tokens and then with the others, and what was summed with the first. own:
  // what this warp's tokens are relative to. Whether one moves with the others: then s.overlapped.rescale is what to multiply with.
  __device__ __forceinline__ bool MoveReferences(const float (&scores)[4], float (&own)[2]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float m = fmaxf(scores[c], scores[c + 2]);
#pragma unroll
      for (int d = 4; d < 32; d *= 2) m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, d));
      if (lane < 4) s.overlapped.of_warp[warp][RowOf(c)] = m;
    }
    Sync();
    bool moves = false;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const auto largest = [&](int half) {
        return fmaxf(s.overlapped.of_warp[half * 2][RowOf(c)], s.overlapped.of_warp[half * 2 + 1][RowOf(c)]);
      };
      const float rescale = MoveReference(reference[c], largest(0), p.score_scale_log2);
      sum[c] *= rescale;
#pragma unroll
      for (int i = 0; i < kBlocks * 2; ++i) out[i / 2][i % 2 * 2 + c] *= rescale;
      own[c] = reference[c];
      const float again = MoveReference(reference[c], largest(1), p.score_scale_log2);
      moves |= reference[c] != own[c];
      if (warp >= 2) own[c] = reference[c];
      if (warp == 0 && lane < 4) s.overlapped.rescale[RowOf(c)] = again;
    }
    return ptx::NamedBarrierAny(kOverlappedBarrier, kWarpgroup, moves);
  }

  __device__ __forceinline__ void RescaleSum() {
    sum[0] *= s.overlapped.rescale[RowOf(0)], sum[1] *= s.overlapped.rescale[RowOf(1)];
  }

  // The weights of the scores, to shared memory.
  __device__ __forceinline__ void Weigh(float (&scores)[4], const float (&own)[2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[i] = ptx::Exp2(scores[i] * p.score_scale_log2 - BaseOfReference(own[i % 2], p.score_scale_log2));
      sum[i % 2] += scores[i];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pair = ptx::TransposeMatrix(Pack<T>(scores[half * 2], scores[half * 2 + 1]));
      *reinterpret_cast<uint32_t*>(s.overlapped.weights + lane / 4 * 128 + ((warp * 2 + half) ^ (lane / 4)) * 16 + lane % 4 * 4) =
          pair;
    }
  }

  // O^T += V^T P^T of tokens [kBegin, kEnd) of the step.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void Accumulate() {
#pragma unroll
    for (auto& block : out) ptx::PinRegisters(block);
    ptx::WgmmaFence();
    const uint64_t a = MatrixDescriptor(ptx::Uniform(Unit()), 1024, C::kGroupBytes);
    const uint64_t b = MatrixDescriptor(ptx::Uniform(ptx::SharedAddress(s.overlapped.weights)), 16, 1024);
#pragma unroll
    for (int step = kBegin / 16; step < kEnd / 16; ++step) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        ptx::Wgmma<T, 8>::SsTransposedA(out[block], a + (block * 1024 + step * 2 * C::kGroupBytes) / 16, b + step * 32 / 16, 1);
      }
    }
    ptx::WgmmaCommit();
    ptx::WgmmaWait<0>();
#pragma unroll
    for (auto& block : out) ptx::PinRegisters(block);
  }

  // V rows past the end may hold NaN, which no weight of zero removes.
  __device__ void ClearTail(int present) {
    constexpr int kPieces = C::kHeadDim / 8;
#pragma unroll 1
    for (int i = present * kPieces + threadIdx.x % kWarpgroup; i < C::kOverlappedTokens * kPieces; i += kWarpgroup) {
      const int token = i / kPieces, piece = i % kPieces;
      *reinterpret_cast<uint4*>(s.overlapped.units[unit.stage] + token / 8 * C::kGroupBytes + piece / 8 * 1024 + token % 8 * 128 +
                                piece % 8 * 16) = uint4{};
    }
  }

  __device__ __forceinline__ void Step(const OverlappedSlot& slot, int position) {
    float scores[4];
    Await();
    Score(scores);
    Leave();
    if (p.cap_in > 0.0f) {
#pragma unroll
      for (float& x : scores) x = Tanh(x * p.cap_in);
    }
    const TaskRange& range = slot.task.range;
    if (position < range.full_begin || position + C::kOverlappedTokens > range.full_end) Mask(slot, position, scores);
    float own[2] = {reference[0], reference[1]};
    bool moves_twice = false;
    const bool moves = ReferenceMoves(reference[0], fmaxf(scores[0], scores[2]), p.score_scale_log2) ||
                       ReferenceMoves(reference[1], fmaxf(scores[1], scores[3]), p.score_scale_log2);
    if (ptx::NamedBarrierAny(kOverlappedBarrier, kWarpgroup, moves)) moves_twice = MoveReferences(scores, own);
    if (moves_twice && warp >= 2) RescaleSum();
    Weigh(scores, own);
    if (moves_twice && warp < 2) RescaleSum();
    Await();
    if (const int present = range.end - position; present < C::kOverlappedTokens) ClearTail(present);
    ptx::FenceProxyAsync();  // weights and zeros before wgmma reads them
    Sync();
    if (__builtin_expect(moves_twice, false)) {
      Accumulate<0, 32>();
#pragma unroll
      for (int i = 0; i < kBlocks * 4; ++i) out[i / 4][i % 4] *= s.overlapped.rescale[RowOf(i % 2)];
      Accumulate<32, 64>();
    } else {
      Accumulate<0, 64>();
    }
    Leave();
  }

  // Stores states, or the output of rows of which this task is the only contribution.
  __device__ void Finish(const OverlappedSlot& slot, int head) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2) sum[c] += __shfl_xor_sync(kAllLanes, sum[c], d);
      if (lane < 4) s.overlapped.of_warp[warp][RowOf(c)] = sum[c];
    }
    Sync();
    float scale[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const RowInfo& info = slot.rows[RowOf(c)];
      float total = 0.0f;
#pragma unroll
      for (int w = 0; w < 4; ++w) total += s.overlapped.of_warp[w][RowOf(c)];
      const float m = total > 0.0f ? reference[c] * p.score_scale_log2 : -INFINITY;
      scale[c] = Normalizer(p, total);
      if (info.q_row < 0) continue;
      const bool first = warp == 0 && lane < 4;
      if (info.state == kDirect) {
        const int qo_head = head * p.group_size + info.head_in_group;
        if (p.lse != nullptr && first) p.lse[int64_t{info.q_row} * p.num_kv_heads * p.group_size + qo_head] = NaturalLse(m, total);
      } else {
        const int64_t at = info.state + int64_t{head} * info.head_stride;
        if (first) p.state_ml[at] = {m, total};
        float* const to = p.state_acc + at * C::kHeadDim + warp * 16 + lane / 4;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) to[block * 64] = out[block][c], to[block * 64 + 8] = out[block][c + 2];
      }
    }
    const RowInfo& info = slot.rows[lane / 4];
    const bool direct = info.q_row >= 0 && info.state == kDirect;
    if (!__any_sync(kAllLanes, direct)) return;
    T* const to = static_cast<T*>(p.out) + info.q_row * p.out_row_stride +
                  int64_t{head * p.group_size + info.head_in_group} * p.head_dim + warp * 16 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kBlocks * 2; ++i) {
      const int block = i / 2, half = i % 2, column = block * 64 + half * 8;
      const uint32_t pair = ptx::TransposeMatrix(Pack<T>(out[block][half * 2] * scale[0], out[block][half * 2 + 1] * scale[1]));
      if (direct && warp * 16 + column < p.head_dim) *reinterpret_cast<uint32_t*>(to + column) = pair;
    }
  }

  __device__ void Run() {
    uint32_t q_parity = 0, noted_parity = 1;
    for (int n = 0;; ++n) {
      const int place = n % C::kOverlappedSlots;
      ptx::BarrierWait(&s.overlapped.known[place], n / C::kOverlappedSlots & 1);
      const OverlappedSlot& slot = s.overlapped.slots[place];
      if (slot.task.head_end < 0) return;
      for (int head = slot.task.head_begin; head < slot.task.head_end;
           ++head) {  // what stands in the slot is not kept in registers
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i) out[i / 4][i % 4] = 0.0f;
        reference[0] = reference[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
        if (slot.task.first < slot.task.range.end) {
          ptx::BarrierWait(&s.overlapped.q_ready, q_parity), q_parity ^= 1;
        } else {
          Sync();  // what Finish writes, the one before may still read
        }
        for (int position = slot.task.first; position < slot.task.range.end; position += C::kOverlappedTokens) {
          Step(slot, position);
        }
        Finish(slot, head);
        StressDelay<C>();
        ptx::BarrierWait(&s.overlapped.noted, noted_parity), noted_parity ^= 1;
        ptx::BarrierArrive(&s.overlapped.stored);
      }
      __syncwarp();
      if (lane == 0) ptx::BarrierArrive(&s.overlapped.done[place]);  // the task's rows are read
    }
  }
};

// One warp: draws the tickets of the rows of an overlapped tile under one kv head, whose states are stored, and folds the sets that
// they complete.
template <class C>
__device__ void CompleteOverlapped(const KernelParams& p, const OverlappedSlot& slot, int head) {
  const int lane = threadIdx.x % 32;
  const RowInfo& info = slot.rows[lane % kOverlappedRows];
  const bool waits = lane < kOverlappedRows && info.q_row >= 0 && info.state != kDirect;
  StressDelay<C>();
  const unsigned complete =
      __ballot_sync(kAllLanes, waits && info.rows_from_draw == 0 && ArriveLast(p, info.ticket, head, info.arrivals));
  unsigned left = __ballot_sync(kAllLanes, waits && (complete >> (lane - info.rows_from_draw & 31) & 1) != 0);
#pragma unroll 1
  for (; left != 0; left &= left - 1) {
    const RowInfo& row = slot.rows[__ffs(left) - 1];
    const FoldRow fold{.count = row.contribution_count,
                       .contribution_begin = row.contribution_begin,
                       .row_in_set = row.row_in_set,
                       .q_row = row.q_row,
                       .qo_head = head * p.group_size + row.head_in_group};
    FoldRows<typename C::Element, C::kHeadDim, 2, 32>(p, fold, head, ContributionOf(p, fold, 0));
  }
}

// One warp: completes the overlapped tiles.
template <class C>
__device__ void CompleteOverlappedTiles(const KernelParams& p, SharedStorage<C>& s) {
  auto& overlapped = s.overlapped;
  uint32_t stored_parity = 0;
  for (int n = 0;; ++n) {
    const int place = n % C::kOverlappedSlots;
    ptx::BarrierWait(&overlapped.known[place], n / C::kOverlappedSlots & 1);
    const OverlappedSlot& slot = overlapped.slots[place];
    if (slot.task.head_end < 0) return;
    for (int head = slot.task.head_begin; head < slot.task.head_end; ++head) {
      ptx::BarrierWait(&overlapped.stored, stored_parity), stored_parity ^= 1;
      if (threadIdx.x % 32 == 0) ptx::BarrierArrive(&overlapped.noted);
      CompleteOverlapped<C>(p, slot, head);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::BarrierArrive(&overlapped.done[place]);
  }
}

}  // namespace coppice::attention::cuda
