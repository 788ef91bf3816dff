// The loading side: tasks from the queues, rows and lengths from the plan, Q rows by cp.async, KV pages by the bulk tensor copy
// engine. Layer: attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/kernel_config.h"
#include "attention/cuda/merge.cuh"
#include "attention/cuda/shared_storage.cuh"
#include "core/cuda/ptx.cuh"

namespace coppice::attention::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// The tensor maps of K and V; see EncodeTensorMaps in tensor_map.cc for their dimensions.
struct KvMaps {
  const CUtensorMap* k;
  const CUtensorMap* v;
};

// Called once by each loading warp when it draws no more: the last of all leaves the counters as the next launch needs them.
template <class C>
__device__ __forceinline__ void FinishDrawing(const KernelParams& p, SharedStorage<C>& s) {
  if (threadIdx.x % 32 != 0 || atomicAdd(&s.drawers_done, 1) != kWarpgroup / 32 - 1) return;
  if (FinishesLast(p)) p.counters->dense_next = p.counters->stream_next = p.counters->finished_ctas = 0;
}

// Where the tensor maps find a page's part of a kv head: the last dimension's coordinate.
__device__ __forceinline__ int UnitOf(const KernelParams& p, int page, int kv_head) {
  return page * p.units_per_page + kv_head * p.units_per_head;
}

// Copies the box of kv index `position` (a multiple of the box), K or V, to `to` and its bytes to `ready`.
__device__ __forceinline__ void LoadBox(const KernelParams& p, const CUtensorMap* map, uint64_t* ready, uint8_t* to, int unit,
                                        int position, int chunks, int group_bytes, uint64_t priority) {
  const int group = (position & (p.page_size - 1)) >> 3;
  if (!p.split_boxes) {
    ptx::TensorLoad5(to, map, ready, 0, 0, 0, group, unit, priority);
    return;
  }
  for (int g = 0; g < p.box_tokens / 8; ++g) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      ptx::TensorLoad5(to + g * group_bytes + chunk * 1024, map, ready, chunk * 64, 0, group + g, unit, 0, priority);
    }
  }
}

// Gathers what the rows of a task see; each lane adds its own.
struct RowRanges {
  int lo_min = INT32_MAX, lo_max = 0, hi_min = INT32_MAX, hi_max = 0;

  __device__ __forceinline__ void Add(const ItemRow& row, bool tree_mask) {
    if (row.q_row < 0) return;
    lo_min = min(lo_min, row.lo), lo_max = max(lo_max, row.lo);
    // The draft mask may hide any of a branch's own queries.
    hi_min = min(hi_min, tree_mask ? row.hi - row.query_count : row.hi), hi_max = max(hi_max, row.hi);
  }
  // Over groups of kLanes neighbouring lanes; all lanes call.
  template <int kLanes>
  __device__ __forceinline__ void Combine() {
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) {
      lo_min = min(lo_min, __shfl_xor_sync(kAllLanes, lo_min, d)), lo_max = max(lo_max, __shfl_xor_sync(kAllLanes, lo_max, d));
      hi_min = min(hi_min, __shfl_xor_sync(kAllLanes, hi_min, d)), hi_max = max(hi_max, __shfl_xor_sync(kAllLanes, hi_max, d));
    }
  }
  // Of an item whose range the live length of its branch ends at `end`.
  __device__ __forceinline__ TaskRange Of(const DeviceItem& item, int end) const {
    if (!item.masked) return {item.kv_begin, end, item.kv_begin, end};
    return {max(item.kv_begin, lo_min), min(end, hi_max), max(item.kv_begin, lo_max), min(end, hi_min)};
  }
};

// ------------------------------------------------------------------------------------------------------------- dense tiles

// One warp: says in a slot, which is free, that no dense task comes any more.
template <class C>
__device__ __forceinline__ void EndDenseTasks(SharedStorage<C>& s, int slot) {
  if (threadIdx.x % 32 == 0) s.dense[slot].task.num_tiles = -1;
  ptx::BarrierArrive(&s.task_known[slot]);
}

// One warp: draws dense tasks, resolves their rows and ranges for the warps that load Q and KV.
template <class C>
struct DenseTaskLoader {
  const KernelParams& p;
  SharedStorage<C>& s;
  const int num_tasks, dense_ctas;
  const bool tree_mask;
  int claimed;  // of lane 0: the next task
  int n = 0;    // its number in this CTA

  __device__ DenseTaskLoader(const KernelParams& p, SharedStorage<C>& s, int cta, int num_tasks, int dense_ctas, bool tree_mask)
      : p(p),
        s(s),
        num_tasks(num_tasks),
        dense_ctas(dense_ctas),
        tree_mask(tree_mask),
        claimed(cta < dense_ctas ? cta : num_tasks) {}  // the first task needs no drawing

  // Of the slot that the next task goes to: it is free.
  __device__ __forceinline__ uint64_t* free_barrier() const { return &s.task_done[n % C::kTaskSlots]; }
  __device__ __forceinline__ uint32_t free_parity() const { return (n / C::kTaskSlots & 1) ^ 1; }

  // The next task to its slot, which is free. False: there is none.
  __device__ bool Load() {
    constexpr int kRowsAtOnce = C::kOverlapsDecode ? 1 : 2;  // a lane: as many look-ups under way as the producer's registers hold
    const int lane = threadIdx.x % 32, slot = n % C::kTaskSlots;
    ++n;
    DenseSlot& shared = s.dense[slot];
    const int index = __shfl_sync(kAllLanes, claimed, 0);
    if (index >= num_tasks) {
      EndDenseTasks(s, slot);
      return false;
    }
    const DeviceItem item = LoadPlan(&p.dense_tasks[index].item);
    const int kv_len = __ldg(&p.branches[item.branch].kv_len);

    RowRanges ranges;
#pragma unroll 1
    for (int begin = lane; begin < kDenseRows; begin += kRowsAtOnce * 32) {
      DeviceMember members[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int r = begin + i * 32;
        members[i] = LoadPlan(p.members + item.member_begin + (r < item.rows ? MemberOf(p, item, r) : 0));
      }
      DeviceBranch branches[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) branches[i] = LoadBranch(p, members[i].branch);
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int r = begin + i * 32;
        RowInfo info = RowOf(p, item, members[i], r);
        AddBranch(p, branches[i], tree_mask, info);
        ranges.Add(info, tree_mask);
        shared.rows[r] = info;
      }
    }
    ranges.Combine<32>();
    if (lane == 0) {
      DenseTask t{.range = ranges.Of(item, min(item.kv_end, kv_len))};
      t.first = t.range.begin / C::kDenseAlignment * C::kDenseAlignment;
      t.num_tiles = t.range.end > t.range.begin ? (t.range.end - t.first + C::kKvTile - 1) / C::kKvTile : 0;
      t.page_begin = item.page_begin;
      t.kv_head = item.head_begin;
      t.rows = item.rows;
      shared.task = t;
    }
    ptx::BarrierArrive(&s.task_known[slot]);
    if (lane == 0) claimed = dense_ctas + atomicAdd(&p.counters->dense_next, 1);  // the next, while this one is loaded
    if constexpr (C::kOverlapsDecode) {
      if (lane == 0)
        s.overlapped.dense_tokens += shared.task.num_tiles * C::kKvTile, s.overlapped.dense_drawn_out = claimed >= num_tasks;
    }
    return true;
  }
};

template <class C>
__device__ void LoadDenseTasks(const KernelParams& p, SharedStorage<C>& s, int cta, int num_tasks, int dense_ctas, bool tree_mask) {
  DenseTaskLoader<C> tasks(p, s, cta, num_tasks, dense_ctas, tree_mask);
  do {
    ptx::BarrierWait(tasks.free_barrier(), tasks.free_parity());
  } while (tasks.Load());
}

// The Q rows of a dense task, 16 bytes a lane, by C::kGatherers warps of which this is number `gatherer`; rows and columns that do
// not exist become zeros. n: the task's number.
template <class C>
__device__ __forceinline__ void GatherTaskQ(const KernelParams& p, SharedStorage<C>& s, const DenseSlot& slot, int n,
                                            int gatherer) {
  using T = typename C::Element;
  constexpr int kPieces = C::kHeadDim / 8, kRowsAtOnce = 32 / kPieces;
  const int lane = threadIdx.x % 32, piece = lane % kPieces, buffer = n % C::kQBuffers;
  const T* q = static_cast<const T*>(p.q);
  const int first_head = slot.task.kv_head * p.group_size;
#pragma unroll 4
  for (int r = gatherer * kRowsAtOnce + lane / kPieces; r < kDenseRows; r += C::kGatherers * kRowsAtOnce) {
    const int q_row = slot.rows[r].q_row;
    const bool exists = q_row >= 0 && piece * 8 < p.head_dim;
    const T* from =
        exists ? q + q_row * p.q_row_stride + int64_t{first_head + slot.rows[r].head_in_group} * p.head_dim + piece * 8 : q;
    uint8_t* to = s.q[buffer] + (r / 64) * C::kQHalfBytes + (piece / 8) * 8192 + (r % 64) * 128 + ((piece % 8) ^ (r % 8)) * 16;
    ptx::CopyAsync16(ptx::SharedAddress(to), from, exists ? 16 : 0);
  }
  ptx::CopyAsyncWaitAll();
  ptx::FenceProxyAsync();  // Q, written by ordinary copies, is read by wgmma
  ptx::BarrierArrive(&s.q_ready[buffer]);
}

// A warp that gathers the Q rows of all dense tasks.
template <class C>
__device__ void GatherQ(const KernelParams& p, SharedStorage<C>& s, int gatherer) {
  for (int n = 0;; ++n) {
    const int slot = n % C::kTaskSlots;
    ptx::BarrierWait(&s.task_known[slot], n / C::kTaskSlots & 1);
    if (s.dense[slot].task.num_tiles < 0) break;
    GatherTaskQ<C>(p, s, s.dense[slot], n, gatherer);
  }
}

// The n-th task that LoadDenseTasks drew, for one warp, each of whose lanes has a copy; num_tiles < 0: there are no more.
template <class C>
__device__ DenseTask TakeDenseTask(SharedStorage<C>& s, int n) {
  const int slot = n % C::kTaskSlots;
  ptx::BarrierWait(&s.task_known[slot], n / C::kTaskSlots & 1);
  const DenseTask t = s.dense[slot].task;
  if (t.num_tiles < 0) return t;
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::BarrierArrive(&s.task_done[slot]);
  return t;
}

// One warp: the KV tiles of the same tasks, as fast as the ring empties; it runs ahead across tasks.
template <class C>
__device__ void LoadDenseKv(const KernelParams& p, KvMaps maps, SharedStorage<C>& s) {
  const int lane = threadIdx.x % 32;
  constexpr int kBoxesAtOnce = 16;  // half of the lanes copy K, half V
  constexpr int kRounds = (C::kMostBoxes + kBoxesAtOnce - 1) / kBoxesAtOnce;
  const int boxes = C::kKvTile >> p.box_shift;
  const bool is_v = lane >= kBoxesAtOnce;
  int tile = 0;  // over all tasks
  for (int n = 0;; ++n) {
    const DenseTask t = TakeDenseTask(s, n);
    if (t.num_tiles < 0) break;
    int next_pages[kRounds];  // of this lane's boxes
    const auto look_up = [&](int start) {
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int box = r * kBoxesAtOnce + lane % kBoxesAtOnce, position = start + box * p.box_tokens;
        const bool exists = box < boxes && position < t.range.end;
        next_pages[r] = exists ? __ldg(p.page_indices + t.page_begin + (position >> p.page_shift)) : 0;
      }
    };
    look_up(t.first);
    for (int i = 0; i < t.num_tiles; ++i, ++tile) {
      const int stage = tile % C::kStages;
      const uint32_t parity = (tile / C::kStages & 1) ^ 1;
      const int start = t.first + i * C::kKvTile;
      if constexpr (C::kOverlapsDecode) {
        if (lane == 0) s.overlapped.dense_tokens_copied = tile * C::kKvTile;
      }
      const int present = min(boxes, (t.range.end - start + p.box_tokens - 1) >> p.box_shift);
      const uint32_t bytes = present * p.box_tokens * C::kHeadDim * 2;
      int pages[kRounds];
#pragma unroll
      for (int r = 0; r < kRounds; ++r) pages[r] = next_pages[r];
      const auto load = [&](const CUtensorMap* map, uint64_t* ready, uint8_t* to) {
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          const int box = r * kBoxesAtOnce + lane % kBoxesAtOnce;
          if (box >= present) break;
          LoadBox(p, map, ready, to + box * p.box_tokens / 8 * C::kGroupBytes, UnitOf(p, pages[r], t.kv_head),
                  start + box * p.box_tokens, C::kHeadChunks, C::kGroupBytes, ptx::kEvictNormal);
        }
      };
      ptx::BarrierWait(&s.k_free[stage], parity);
      if (lane == 0) ptx::BarrierArriveExpectBytes(&s.k_ready[stage], bytes);
      __syncwarp();
      if (!is_v) load(maps.k, &s.k_ready[stage], s.k[stage]);
      look_up(start + C::kKvTile);  // the next tile's copies then wait for their place alone
      ptx::BarrierWait(&s.v_free[stage], parity);
      if (lane == kBoxesAtOnce) ptx::BarrierArriveExpectBytes(&s.v_ready[stage], bytes);
      __syncwarp();
      if (is_v) load(maps.v, &s.v_ready[stage], s.v[stage]);
    }
  }
}

// ------------------------------------------------------------------------------------------------------------ stream tiles

// Quotient of small positive numbers in a few instructions.
__device__ __forceinline__ int SmallQuotient(int a, int b) { return __float2int_rz(__fdividef(a + 0.5f, b)); }

// Reads the tickets of a stream task whose rows are of one merge setwhen the task is looked up. If all others have arrived,
// the task's warp needs no ticket and stores no states: it fetches the others' while it reads KV and folds from shared memory
// (FoldShared). A lane of the task's half of the warp each state.
struct TicketPrefetch {
  bool few = false;    // the states fit in shared memory; the same for the task
  bool holds = false;  // this lane has one, of:
  int32_t set = 0, head = 0, row = 0;
  int32_t ticket = 0;
  int32_t own_state = 0;  // of the task in its place
  LoadedContribution contribution;

  // Starts the look-ups; `lane` is that in the task's half of the warp.
  __device__ __forceinline__ TicketPrefetch(const KernelParams& p, const Task& task, int lane, bool looks) {
    const DeviceItem& item = task.item;
    const DeviceMember& m = task.first;
    const int rows = item.rows, count = m.contribution_count, states = rows * item.head_count * count;
    few = looks && item.member_count == 1 && m.state_begin != kDirect && count <= kMostInShared && states <= kSharedStates;
    holds = few && lane < states;
    if (!holds) return;
    const int pair = SmallQuotient(lane, count), head_in_task = SmallQuotient(pair, rows);
    set = m.set, head = item.head_begin + head_in_task, row = pair - head_in_task * rows;
    ticket = ptx::LoadRelaxedDevice(TicketOf(p, set, head));
    contribution = LoadContribution(p, m.contribution_begin + lane - pair * count);
    own_state = m.state_begin + head * m.head_stride + row;
  }

  // If all others have arrived, puts the tickets back, since this task is the last, and acquires their states. All lanes of
  // the warp call; the result is the task's.
  __device__ __forceinline__ bool FindsLast(const KernelParams& p, int arrivals) const {
    const unsigned missing = Ballot(holds && ticket != arrivals - 1);
    const bool last = few && missing == 0;
    if (!__any_sync(kAllLanes, last)) return false;
    if (last && holds) AcquireSet(p, set, head);
    ptx::FenceProxyAsyncGlobal();  // the copy engine fetches what these tickets released
    return last;
  }
  // The state to fetch, or kOwnState.
  __device__ __forceinline__ int32_t Fetched() const {
    const int32_t state = contribution.State(head, row);
    return holds && state != own_state ? state : kOwnState;
  }
  __device__ __forceinline__ unsigned OwnStates() const { return Ballot(holds && Fetched() == kOwnState); }

 private:
  static __device__ __forceinline__ unsigned Ballot(bool bit) {
    return __ballot_sync(kAllLanes, bit) >> (threadIdx.x % 32 / kStreamRows * kStreamRows) & ((1u << kStreamRows) - 1);
  }
};

// A row of a cooperative task, as one of its warps sees it: all warps compute with it, one stores what they found of it, draws a
// ticket for it alone, whose place is the row's, and folds its states if that is the last.
__device__ __forceinline__ void AssignRow(const KernelParams& p, bool own, RowInfo& row) {
  if (!own) row.state = kDirect;
  row.ticket = row.q_row * p.group_size + row.head_in_group;
  row.rows_from_draw = 0;
}

// The first of the pages that a task's slot holds (StreamTask::pages_from), and one of them. Entries past the item's end are read
// and not used.
template <class C>
__device__ __forceinline__ int PagesFrom(const KernelParams& p, const DeviceItem& item) {
  return C::kGathers ? item.kv_begin / C::kStreamAlignment * C::kStreamAlignment : item.kv_begin >> p.page_shift;
}
template <class C>
__device__ __forceinline__ int HeldPage(const KernelParams& p, const DeviceItem& item, int number) {
  return __ldg(p.page_indices + min(item.page_begin + (C::kGathers ? number >> p.page_shift : number), p.num_page_slots - 1));
}

// A task as its worker reads it. exists: else there are no more. kv_len: of its branch; pages_from: see StreamTask.
__device__ __forceinline__ StreamTask ResolvedTask(const DeviceItem& item, bool exists, const RowRanges& ranges, int kv_len,
                                                   int alignment, int pages_from) {
  StreamTask t{.range = ranges.Of(item, min(item.kv_end, kv_len))};
  t.first = t.range.begin / alignment * alignment;
  t.head_begin = item.head_begin;
  t.head_end = exists ? item.head_begin + item.head_count : -1;
  t.rows = item.rows;
  t.page_begin = item.page_begin;
  t.pages_from = pages_from;
  t.read_once = item.read_once;
  return t;
}

// One warp: draws and resolves the tasks of the stream warps 2 * pair and 2 * pair + 1, a half of its lanes each, a row a lane. So
// the chain of look-ups to a task costs the workers nothing. first_task: the worker's first one, or -1 to draw it too; tasks before
// drawn_from are dealt, not drawn. Cooperative tasks are all dealt, one an SM.
template <class C>
__device__ void LoadStreamTasks(const KernelParams& p, SharedStorage<C>& s, int pair, int first_task, int drawn_from, int num_tasks,
                                bool tree_mask, bool cooperative) {
  const int lane = threadIdx.x % 32, row = lane % kStreamRows, worker = pair * 2 + lane / kStreamRows;
  StreamState<C>& state = s.stream[worker];
  bool more = true, phase = false;
  for (int n = 0; __any_sync(kAllLanes, more);) {  // these three are the half's own
    const int place = n % C::kStreamSlots;
    // The first task is wanted in any case.
    const bool serves = more && (n == 0 || ptx::BarrierTest(&state.wanted[place], (n - 1) / C::kStreamSlots & 1));
    if (!__any_sync(kAllLanes, serves)) {
      __nanosleep(32);
      continue;
    }
    int index = first_task + (cooperative ? n * static_cast<int>(gridDim.x) : 0);
    if (serves && row == 0 && !cooperative && (n > 0 || first_task < 0))
      index = drawn_from + atomicAdd(&p.counters->stream_next, 1);
    index = __shfl_sync(kAllLanes, index, lane - row);
    const bool exists = serves && index < num_tasks;
    Task task{};
    if (exists) task = LoadPlan(p.stream_tasks + index);
    const DeviceItem& item = task.item;
    // Look-ups that need the task alone, at once: lengths, pages from the item's first on, tickets (not at the beginning
    // of a launch, before any arrival).
    const DeviceBranch first_branch = LoadBranch(p, task.first.branch);
    const int kv_len = __ldg(&p.branches[item.branch].kv_len);
    const int pages_from = PagesFrom<C>(p, item) + (C::kGathers && cooperative ? worker * C::kStreamTokens : 0);
    int pages[kPagesHeld / kStreamRows];
#pragma unroll
    for (int i = 0; i < kPagesHeld / kStreamRows; ++i) {
      pages[i] = HeldPage<C>(p, item, pages_from + i * kStreamRows + row);
    }
    const TicketPrefetch early(p, task, row, !C::kDeterministic && exists && !cooperative && (n > 0 || first_task < 0));
    RowInfo info = ResolveRow(p, task, first_branch, row, tree_mask);
    RowRanges ranges;
    ranges.Add(info, tree_mask);
    ranges.Combine<kStreamRows>();
    const bool last = early.FindsLast(p, task.first.arrivals);
    const unsigned own = cooperative ? kAllLanes : early.OwnStates();
    if (cooperative) AssignRow(p, row % C::kStreamWarps == worker, info);
    if (serves) {
      StreamSlot& slot = state.slots[place];
      if (!last || row < kSharedRows) slot.rows[row] = info;
      if (last) slot.shared_states[row] = early.Fetched();
#pragma unroll
      for (int i = 0; i < kPagesHeld / kStreamRows; ++i) slot.pages[i * kStreamRows + row] = pages[i];
      if (row == 0) {
        StreamTask t = ResolvedTask(item, exists, ranges, kv_len, C::kStreamAlignment, pages_from);
        if (cooperative) t.first += worker * C::kStreamTokens;
        t.shared_of_row = cooperative ? 1 : last ? task.first.contribution_count : 0;
        t.shared_phase = phase;
        t.own = own;
        slot.task = t;
      }
      ptx::BarrierArrive(&state.known[place]);
      phase ^= last;
      ++n;
      more = exists;
    }
    __syncwarp();
  }
}

}  // namespace coppice::attention::cuda
