// Side tiles: at most eight rows against a run of KV, beside the dense tiles of the same CTA, so that an SM's tensor cores and its
// copy path work at the same moment (POD-Attention's aim, section 3, within one CTA). A fourth warpgroup multiplies with KV as the
// left operand of wgmma, straight from shared memory (S^T = K Q^T, O^T = V^T P^T): a step of 64 tokens takes four registers of
// scores and eight of output a thread, so the dense warpgroups keep theirs. One loading warp draws its tasks from the queue of the
// stream tiles and copies their KV, until the dense tiles are nearly done. Layer: attention/cuda.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/dense_tile.cuh"
#include "attention/cuda/load.cuh"

namespace coppice::attention::cuda {

// Dense tokens that are computed while a side tile takes one (12 and 32 ns): side tiles end before the dense ones do.
inline constexpr int kDenseTokensPerSideToken = 3;

// ---- The loading warp.

// Looks tasks up for the slots of the side tiles.
template <class C>
struct SideTaskLoader {
  const KernelParams& p;
  SharedStorage<C>& s;
  const int drawn_from, num_tasks;  // as of LoadStreamTasks; plans with side tiles have stream tasks
  const bool tree_mask;
  int n = 0;
  int drawn_tokens = 0, longest = 0;  // of tasks drawn; of the next, which is no longer than the last, for they are sorted

  __device__ __forceinline__ uint64_t* free_barrier() const { return &s.side.done[n % C::kSideSlots]; }
  __device__ __forceinline__ uint32_t free_parity() const { return (n / C::kSideSlots & 1) ^ 1; }

  __device__ __forceinline__ int TokensOf(const DeviceItem& item) const {
    return max(0, min(item.kv_end, __ldg(&p.branches[item.branch].kv_len)) - item.kv_begin) * item.head_count;
  }

  // The next task to its slot, which is free, if there is one that ends before the dense tiles do. The same in all lanes.
  __device__ bool Load() {
    const int lane = threadIdx.x % 32, row = lane % kStreamRows, place = n % C::kSideSlots;
    auto& side = s.side;
    ++n;
    int index = 0;
    if (n == 1) longest = TokensOf(LoadPlan(&p.stream_tasks[min(drawn_from, num_tasks - 1)].item));  // the longest
    const int tokens = drawn_tokens - side.tokens_copied + longest;
    bool exists =
        !side.dense_drawn_out || side.dense_tokens - side.dense_tokens_copied > kDenseTokensPerSideToken * int64_t{tokens};
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
    SideSlot& slot = side.slots[place];
    if (lane < kSideRows) slot.rows[row] = info;
    slot.pages[lane] = page;
    longest = TokensOf(item);
    drawn_tokens += longest;
    if (lane == 0) slot.task = ResolvedTask(item, exists, ranges, kv_len, C::kStreamAlignment, pages_from);
    ptx::BarrierArrive(&side.known[place]);
    __syncwarp();
    return exists;
  }
};

__device__ __forceinline__ bool Reached(uint64_t* barrier, uint32_t parity) {
  return __all_sync(kAllLanes, ptx::BarrierTest(barrier, parity));
}

// One warp: the dense tasks, and those of the side tiles meanwhile.
template <class C>
__device__ void LoadTasksBesideSide(DenseTaskLoader<C> dense, SideTaskLoader<C> side, bool has_side) {
  bool has_dense = true;
  while (has_dense || has_side) {
    if (has_dense && Reached(dense.free_barrier(), dense.free_parity())) {
      has_dense = dense.Load();
    } else if (has_side && Reached(side.free_barrier(), side.free_parity())) {
      has_side = side.Load();
    } else {
      __nanosleep(100);
    }
  }
}

// Copies K or V of the tokens from `position` on, a box a lane.
template <class C>
__device__ __forceinline__ void LoadSideUnit(const KernelParams& p, const CUtensorMap* map, const SideSlot& slot, int head,
                                             int position, uint64_t* ready, uint8_t* to) {
  const int lane = threadIdx.x % 32;
  const int boxes = min(C::kSideTokens >> p.box_shift, (slot.task.range.end - position + p.box_tokens - 1) >> p.box_shift);
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
__device__ __forceinline__ void LoadSideQ(const KernelParams& p, const SideSlot& slot, int head, uint8_t* to) {
  using T = typename C::Element;
  constexpr int kPieces = C::kHeadDim / 8;
  const int lane = threadIdx.x % 32, piece = lane % kPieces;
#pragma unroll
  for (int row = lane / kPieces; row < kSideRows; row += 32 / kPieces) {
    const RowInfo& info = slot.rows[row];
    const bool exists = info.q_row >= 0 && piece * 8 < p.head_dim;
    const T* from = static_cast<const T*>(p.q);
    if (exists) from += info.q_row * p.q_row_stride + int64_t{head * p.group_size + info.head_in_group} * p.head_dim + piece * 8;
    ptx::CopyAsync16(ptx::SharedAddress(to + piece / 8 * 1024 + row * 128 + ((piece % 8) ^ row) * 16), from, exists ? 16 : 0);
  }
}

// One warp: Q and KV of the side tiles, as fast as the ring empties.
template <class C>
__device__ void LoadSide(const KernelParams& p, KvMaps maps, SharedStorage<C>& s) {
  auto& side = s.side;
  RingCursor<C::kSideUnits> unit{.parity = 1};  // of `free`, whose first phase counts as complete
  const auto load = [&](bool is_v, const SideSlot& slot, int head, int position) {
    const CUtensorMap* const map = is_v ? maps.v : maps.k;
    ptx::BarrierWait(&side.free[unit.stage], unit.parity);
    LoadSideUnit<C>(p, map, slot, head, position, &side.ready[unit.stage], side.units[unit.stage]);
    unit.Advance();
  };
  for (int n = 0;; ++n) {
    const SideSlot& slot = side.slots[n % C::kSideSlots];
    ptx::BarrierWait(&side.known[n % C::kSideSlots], n / C::kSideSlots & 1);
    const int first = slot.task.first, end = slot.task.range.end, head_end = slot.task.head_end;
    if (head_end < 0) return;
    for (int head = slot.task.head_begin; head < head_end; ++head) {
      for (int position = first; position < end; position += C::kSideTokens) {
        StressDelay<C>();
        load(/*is_v=*/false, slot, head, position);
        load(/*is_v=*/true, slot, head, position);
        if (threadIdx.x % 32 == 0) side.tokens_copied += min(C::kSideTokens, end - position);
        if (position == first) {
          // The last product of scores has left Q's place: its K, two or three units ago, has left the place of this V or of K.
          static_assert(C::kSideUnits <= 3);
          LoadSideQ<C>(p, slot, head, side.q);
          ptx::CopyAsyncWaitAll();
          ptx::FenceProxyAsync();  // Q, written by ordinary copies, is read by wgmma
          ptx::BarrierArrive(&side.q_ready);
        }
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::BarrierArrive(&side.done[n % C::kSideSlots]);  // its pages are read
  }
}

// ---- The computing warpgroup.

template <class C>
struct SideTile {
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
  RingCursor<C::kSideUnits> unit;

  __device__ __forceinline__ int RowOf(int c) const { return lane % 4 * 2 + c; }
  __device__ __forceinline__ void Sync() const { ptx::NamedBarrierSync(kSideBarrier, kWarpgroup); }

  // Of the ring's unit.
  __device__ __forceinline__ uint32_t Unit() const { return ptx::SharedAddress(s.side.units) + unit.stage * C::kSideUnitBytes; }
  __device__ __forceinline__ void Await() const { ptx::BarrierWait(&s.side.ready[unit.stage], unit.parity); }
  __device__ __forceinline__ void Leave() {
    if (lane == 0) ptx::BarrierArrive(&s.side.free[unit.stage]);
    unit.Advance();
  }

  __device__ __forceinline__ void Score(float (&scores)[4]) {
#pragma unroll
    for (float& x : scores) x = 0.0f;
    ptx::PinRegisters(scores);
    ptx::WgmmaFence();
    const uint64_t a = MatrixDescriptor(ptx::Uniform(Unit()), 16, C::kGroupBytes);
    const uint64_t b = MatrixDescriptor(ptx::Uniform(ptx::SharedAddress(s.side.q)), 16, 1024);
#pragma unroll
    for (int step = 0; step < C::kHeadDim / 16; ++step) {
      const int at = (step / 4 * 1024 + step % 4 * 32) / 16;
      ptx::Wgmma<T, 8>::Ss(scores, a + at, b + at, step != 0);
    }
    ptx::WgmmaCommit();
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(scores);
  }

  __device__ __forceinline__ void Mask(const SideSlot& slot, int start, float (&scores)[4]) {
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
  // what this warp's tokens are relative to. Whether one moves with the others: then s.side.rescale is what to multiply with.
  __device__ __forceinline__ bool MoveReferences(const float (&scores)[4], float (&own)[2]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float m = fmaxf(scores[c], scores[c + 2]);
#pragma unroll
      for (int d = 4; d < 32; d *= 2) m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, d));
      if (lane < 4) s.side.of_warp[warp][RowOf(c)] = m;
    }
    Sync();
    bool moves = false;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const auto largest = [&](int half) {
        return fmaxf(s.side.of_warp[half * 2][RowOf(c)], s.side.of_warp[half * 2 + 1][RowOf(c)]);
      };
      const float rescale = MoveReference(reference[c], largest(0), p.score_scale_log2);
      sum[c] *= rescale;
#pragma unroll
      for (int i = 0; i < kBlocks * 2; ++i) out[i / 2][i % 2 * 2 + c] *= rescale;
      own[c] = reference[c];
      const float again = MoveReference(reference[c], largest(1), p.score_scale_log2);
      moves |= reference[c] != own[c];
      if (warp >= 2) own[c] = reference[c];
      if (warp == 0 && lane < 4) s.side.rescale[RowOf(c)] = again;
    }
    return ptx::NamedBarrierAny(kSideBarrier, kWarpgroup, moves);
  }

  __device__ __forceinline__ void RescaleSum() { sum[0] *= s.side.rescale[RowOf(0)], sum[1] *= s.side.rescale[RowOf(1)]; }

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
      *reinterpret_cast<uint32_t*>(s.side.weights + lane / 4 * 128 + ((warp * 2 + half) ^ (lane / 4)) * 16 + lane % 4 * 4) = pair;
    }
  }

  // O^T += V^T P^T of tokens [kBegin, kEnd) of the step.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void Accumulate() {
#pragma unroll
    for (auto& block : out) ptx::PinRegisters(block);
    ptx::WgmmaFence();
    const uint64_t a = MatrixDescriptor(ptx::Uniform(Unit()), 1024, C::kGroupBytes);
    const uint64_t b = MatrixDescriptor(ptx::Uniform(ptx::SharedAddress(s.side.weights)), 16, 1024);
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
    for (int i = present * kPieces + threadIdx.x % kWarpgroup; i < C::kSideTokens * kPieces; i += kWarpgroup) {
      const int token = i / kPieces, piece = i % kPieces;
      *reinterpret_cast<uint4*>(s.side.units[unit.stage] + token / 8 * C::kGroupBytes + piece / 8 * 1024 + token % 8 * 128 +
                                piece % 8 * 16) = uint4{};
    }
  }

  __device__ __forceinline__ void Step(const SideSlot& slot, int position) {
    float scores[4];
    Await();
    Score(scores);
    Leave();
    if (p.cap_in > 0.0f) {
#pragma unroll
      for (float& x : scores) x = Tanh(x * p.cap_in);
    }
    const TaskRange& range = slot.task.range;
    if (position < range.full_begin || position + C::kSideTokens > range.full_end) Mask(slot, position, scores);
    float own[2] = {reference[0], reference[1]};
    bool moves_twice = false;
    const bool moves = ReferenceMoves(reference[0], fmaxf(scores[0], scores[2]), p.score_scale_log2) ||
                       ReferenceMoves(reference[1], fmaxf(scores[1], scores[3]), p.score_scale_log2);
    if (ptx::NamedBarrierAny(kSideBarrier, kWarpgroup, moves)) moves_twice = MoveReferences(scores, own);
    if (moves_twice && warp >= 2) RescaleSum();
    Weigh(scores, own);
    if (moves_twice && warp < 2) RescaleSum();
    Await();
    if (const int present = range.end - position; present < C::kSideTokens) ClearTail(present);
    ptx::FenceProxyAsync();  // weights and zeros before wgmma reads them
    Sync();
    if (__builtin_expect(moves_twice, false)) {
      Accumulate<0, 32>();
#pragma unroll
      for (int i = 0; i < kBlocks * 4; ++i) out[i / 4][i % 4] *= s.side.rescale[RowOf(i % 2)];
      Accumulate<32, 64>();
    } else {
      Accumulate<0, 64>();
    }
    Leave();
  }

  // Stores states, or the output of rows of which this task is the only contribution.
  __device__ void Finish(const SideSlot& slot, int head) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2) sum[c] += __shfl_xor_sync(kAllLanes, sum[c], d);
      if (lane < 4) s.side.of_warp[warp][RowOf(c)] = sum[c];
    }
    Sync();
    float scale[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const RowInfo& info = slot.rows[RowOf(c)];
      float total = 0.0f;
#pragma unroll
      for (int w = 0; w < 4; ++w) total += s.side.of_warp[w][RowOf(c)];
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
      const int place = n % C::kSideSlots;
      ptx::BarrierWait(&s.side.known[place], n / C::kSideSlots & 1);
      const SideSlot& slot = s.side.slots[place];
      if (slot.task.head_end < 0) return;
      for (int head = slot.task.head_begin; head < slot.task.head_end;
           ++head) {  // what stands in the slot is not kept in registers
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i) out[i / 4][i % 4] = 0.0f;
        reference[0] = reference[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
        if (slot.task.first < slot.task.range.end) {
          ptx::BarrierWait(&s.side.q_ready, q_parity), q_parity ^= 1;
        } else {
          Sync();  // what Finish writes, the one before may still read
        }
        for (int position = slot.task.first; position < slot.task.range.end; position += C::kSideTokens) {
          Step(slot, position);
        }
        Finish(slot, head);
        StressDelay<C>();
        ptx::BarrierWait(&s.side.noted, noted_parity), noted_parity ^= 1;
        ptx::BarrierArrive(&s.side.stored);
      }
      __syncwarp();
      if (lane == 0) ptx::BarrierArrive(&s.side.done[place]);  // the task's rows are read
    }
  }
};

// One warp: draws the tickets of the rows of a side tile under one kv head, whose states are stored, and folds the sets that they
// complete.
template <class C>
__device__ void CompleteSide(const KernelParams& p, const SideSlot& slot, int head) {
  const int lane = threadIdx.x % 32;
  const RowInfo& info = slot.rows[lane % kSideRows];
  const bool waits = lane < kSideRows && info.q_row >= 0 && info.state != kDirect;
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

// One warp: completes the side tiles.
template <class C>
__device__ void CompleteSideTiles(const KernelParams& p, SharedStorage<C>& s) {
  auto& side = s.side;
  uint32_t stored_parity = 0;
  for (int n = 0;; ++n) {
    const int place = n % C::kSideSlots;
    ptx::BarrierWait(&side.known[place], n / C::kSideSlots & 1);
    const SideSlot& slot = side.slots[place];
    if (slot.task.head_end < 0) return;
    for (int head = slot.task.head_begin; head < slot.task.head_end; ++head) {
      ptx::BarrierWait(&side.stored, stored_parity), stored_parity ^= 1;
      if (threadIdx.x % 32 == 0) ptx::BarrierArrive(&side.noted);
      CompleteSide<C>(p, slot, head);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::BarrierArrive(&side.done[place]);
  }
}

}  // namespace coppice::attention::cuda
