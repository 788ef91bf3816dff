// Dense tiles: 128 rows against a run of KV, two warpgroups of 64 rows each, wgmma for both products. The warpgroups take turns:
// one has the scores of step n + 1 and the values of step n computed while the other's softmax runs. Hydragen section 3.1 is the
// batching; the turns follow the FlashAttention-3 paper, section 3.1.
// Layer: attention/cuda.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/deterministic_fold.cuh"
#include "attention/cuda/load.cuh"
#include "attention/cuda/stress_delay.cuh"
#include "core/cuda/mma_sm90.cuh"

namespace coppice::attention::cuda {

// Matrix descriptors (PTX ISA, "Shared Memory Matrix Layout"), 128-byte swizzle; byte offsets between 8-row groups (stride) and,
// where the contiguous dimension is longer than 64 elements, between its chunks (leading).
__device__ __forceinline__ uint64_t MatrixDescriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{leading_bytes >> 4} << 16 | uint64_t{stride_bytes >> 4} << 32 |
         uint64_t{1} << 62;
}

// The running softmax of the two rows that a thread holds parts of: rows lane / 4 and lane / 4 + 8 of its warp's 16.
struct RowSoftmax {
  float reference[2] = {-INFINITY, -INFINITY};  // a score, not scaled, that weights and sums are relative to
  float base[2];                                // its exponent, 0 while there is none
  float sum[2] = {0.0f, 0.0f};                  // this thread's columns only
  bool incomplete = true;                       // some row of the warp has no reference yet
};

// A place in a ring of tiles.
template <int kStages>
struct RingCursor {
  uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// A dense warpgroup's place and its view of shared memory, whose barriers and tiles it finds by 32-bit addresses.
template <class C>
struct DenseFrame {
  const int wg, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int row = wg * 64 + warp * 16 + lane / 4;  // and row + 8
  const uint32_t memory;

  __device__ DenseFrame(SharedStorage<C>& s, int wg) : wg(wg), memory(ptx::Uniform(ptx::SharedAddress(&s))) {}

  __device__ uint32_t Barrier(uint32_t of_member, uint32_t index) const {
    return memory + of_member + index * static_cast<uint32_t>(sizeof(uint64_t));
  }
  __device__ uint32_t KvTile(uint32_t of_member, uint32_t stage) const { return memory + of_member + stage * C::kKvTileBytes; }
  // Both warpgroups take turns.
  __device__ void BeginTurn() const { ptx::NamedBarrierSync(kTurnBarrier + wg, 2 * kWarpgroup); }
  __device__ void EndTurn() const { ptx::NamedBarrierArrive(kTurnBarrier + (wg ^ 1), 2 * kWarpgroup); }
  // All lanes are done, by the wait for wgmma or a barrier.
  __device__ void Release(uint32_t barrier) const {
    if (lane == 0) ptx::BarrierArrive(barrier);
  }
};

template <class C>
struct DenseTile {
  static constexpr int kScores = C::kKvTile / 2;  // registers of S
  static constexpr int kOut = C::kHeadDim / 2;    // registers of O
  using T = typename C::Element;
  static constexpr int kFoldAtOnce = C::kDeterministic ? 2 : 4;  // states of a row on their way together
  // Of a weight relative to a score that is not the row's largest: f16 holds 2^16.
  static constexpr float kMostWeight = 4096.0f;

  // S = Q K^T, issued and committed.
  static __device__ __forceinline__ void Score(float (&scores)[kScores], uint32_t q, uint32_t k) {
    ptx::PinRegisters(scores);
    ptx::WgmmaFence();
    const uint64_t a = MatrixDescriptor(q, 16, 1024), b = MatrixDescriptor(k, 16, C::kGroupBytes);
#pragma unroll
    for (int step = 0; step < C::kHeadDim / 16; ++step) {  // the address field counts 16 bytes
      ptx::Wgmma<T, C::kKvTile>::Ss(scores, a + (step / 4 * 8192 + step % 4 * 32) / 16, b + (step / 4 * 1024 + step % 4 * 32) / 16,
                                    step != 0);
    }
    ptx::WgmmaCommit();
  }

  // O += P V, issued and committed.
  static __device__ __forceinline__ void Accumulate(float (&out)[kOut], const uint32_t (&weights)[kScores / 2], uint32_t v) {
    ptx::PinRegisters(out);
    ptx::WgmmaFence();
    const uint64_t b = MatrixDescriptor(v, 1024, C::kGroupBytes);
#pragma unroll
    for (int step = 0; step < C::kKvTile / 16; ++step) {
      ptx::Wgmma<T, C::kHeadDim>::RsTransposedB(out, weights + step * 4, b + step * 2 * C::kGroupBytes / 16);
    }
    ptx::WgmmaCommit();
  }

  // Scores that a row does not see become -inf. `start` is the tile's first kv index.
  static __device__ __forceinline__ void Mask(const KernelParams& p, float (&scores)[kScores], const DenseSlot& slot, int row,
                                              int start, bool tree_mask) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const VisibleRange visible(p, slot.rows[row + half * 8], slot.task.range.begin, slot.task.range.end, tree_mask);
#pragma unroll
      for (int w = 0; w < C::kKvTile / 32; ++w) {
        const uint32_t word = visible.Word(start + w * 32) >> lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            if ((word >> (j * 8 + c) & 1) == 0) scores[(w * 4 + j) * 4 + half * 2 + c] = -INFINITY;
          }
        }
      }
    }
  }

  // Brings the rows' references to the largest score seen, and with them what was summed relative to the old ones.
  static __device__ __forceinline__ void MoveReferences(RowSoftmax& state, const float (&scores)[kScores], float (&out)[kOut],
                                                        float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float m[4];  // chains of comparisons
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
        const float larger = fmaxf(scores[j * 4 + half * 2], scores[j * 4 + half * 2 + 1]);
        m[j % 4] = j < 4 ? larger : fmaxf(m[j % 4], larger);
      }
      float reference = fmaxf(fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3])), state.reference[half]);
      reference = fmaxf(reference, __shfl_xor_sync(kAllLanes, reference, 1));
      reference = fmaxf(reference, __shfl_xor_sync(kAllLanes, reference, 2));
      state.base[half] = reference == -INFINITY ? 0.0f : reference * scale_log2;
      const float rescale = ptx::Exp2(state.reference[half] * scale_log2 - state.base[half]);
      state.reference[half] = reference;
      state.sum[half] *= rescale;
#pragma unroll
      for (int j = 0; j < kOut / 4; ++j) out[j * 4 + half * 2] *= rescale, out[j * 4 + half * 2 + 1] *= rescale;
    }
    state.incomplete = __any_sync(kAllLanes, fminf(state.reference[0], state.reference[1]) == -INFINITY);
  }

  // One step of the running softmax: weights of the scores, relative to the rows' references. A reference need not be the largest
  // score, only near it: the sums show whether it is, so that no step but a row's first looks for the largest before it begins.
  // prepare(): what a step seldom needs before, if `prepares`; it stands behind the same branch.
  template <class Prepare>
  static __device__ __forceinline__ void Softmax(RowSoftmax& state, float (&scores)[kScores], uint32_t (&weights)[kScores / 2],
                                                 float (&out)[kOut], float scale_log2, bool prepares, Prepare&& prepare) {
    bool move = state.incomplete;
    float sum[2];
    while (true) {
      if (__builtin_expect(prepares || move, false)) {
        if (prepares) prepare(), prepares = false;
        if (move) MoveReferences(state, scores, out, scale_log2);
      }
      sum[0] = sum[1] = 0.0f;
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        const float x = ptx::Exp2(scores[2 * i] * scale_log2 - state.base[i % 2]);
        const float y = ptx::Exp2(scores[2 * i + 1] * scale_log2 - state.base[i % 2]);
        sum[i % 2] += x;
        sum[i % 2] += y;
        weights[i] = Pack<T>(x, y);
      }
      if (move || __all_sync(kAllLanes, fmaxf(sum[0], sum[1]) <= kMostWeight)) break;
      move = true;
    }
    state.sum[0] += sum[0], state.sum[1] += sum[1];
  }

  // V rows past the end may hold NaN, which no weight of zero removes: zeros instead. Both warpgroups write the same zeros.
  static __device__ __forceinline__ void ClearTail(uint8_t* v, int present, int wg) {
    constexpr int kPieces = C::kHeadDim / 8;
#pragma unroll 1
    for (int i = present * kPieces + threadIdx.x % kWarpgroup; i < C::kKvTile * kPieces; i += kWarpgroup) {
      const int token = i / kPieces, piece = i % kPieces;
      *reinterpret_cast<uint4*>(v + token / 8 * C::kGroupBytes + piece / 8 * 1024 + token % 8 * 128 + piece % 8 * 16) = uint4{};
    }
    ptx::FenceProxyAsync();  // zeros before wgmma reads them
    ptx::NamedBarrierSync(kWarpgroupBarrier + wg, kWarpgroup);
  }

  // With overlapped tiles there is one buffer for Q, and each warpgroup brings its own rows of the next task there when its last
  // product of scores has left it, under the end of the task. 16 bytes a thread; rows and columns that do not exist become zeros.
  static __device__ __forceinline__ void GatherOwnQ(const KernelParams& p, const DenseSlot& slot, uint32_t q, int wg) {
    constexpr int kPieces = C::kHeadDim / 8, kRowsAtOnce = kWarpgroup / kPieces;
    static_assert(kRowsAtOnce % 8 == 0);
    if (slot.task.num_tiles < 0) return;
    const int piece = threadIdx.x % kPieces, first_row = threadIdx.x % kWarpgroup / kPieces;
    const T* const from = static_cast<const T*>(p.q) + int64_t{slot.task.kv_head * p.group_size} * p.head_dim + piece * 8;
    const uint32_t to = q + piece / 8 * 8192 + ((piece % 8) ^ (first_row % 8)) * 16;
#pragma unroll 2
    for (int r = first_row; r < 64; r += kRowsAtOnce) {
      const ItemRow& row = slot.rows[wg * 64 + r];
      const bool exists = row.q_row >= 0 && piece * 8 < p.head_dim;
      const T* const at = from + row.q_row * p.q_row_stride + row.head_in_group * p.head_dim;
      ptx::CopyAsync16(to + r * 128, exists ? at : static_cast<const T*>(p.q), exists ? 16 : 0);
    }
  }

  // Stores the rows' states, or their output where this item is the only contribution. In deterministic mode `state` has the
  // maximum in base 2 and the sum over all columns.
  static __device__ void Finish(const KernelParams& p, const DenseSlot& slot, float (&out)[kOut], RowSoftmax& state,
                                float scale_log2, int wg) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int kv_head = slot.task.kv_head;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[half];
      if constexpr (!C::kDeterministic) {
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
      }
      const ItemRow info = slot.rows[wg * 64 + warp * 16 + lane / 4 + half * 8];
      if (info.q_row < 0) continue;
      const float m = C::kDeterministic ? state.reference[half] : state.reference[half] * scale_log2;
      if (info.state == kDirect) {
        const int head = kv_head * p.group_size + info.head_in_group;
        const float inverse = Normalizer(p, sum);
        T* to = static_cast<T*>(p.out) + info.q_row * p.out_row_stride + int64_t{head} * p.head_dim;
#pragma unroll
        for (int j = 0; j < C::kHeadDim / 8; ++j) {
          if (j * 8 >= p.head_dim) break;
          *reinterpret_cast<uint32_t*>(to + j * 8 + lane % 4 * 2) =
              Pack<T>(out[j * 4 + half * 2] * inverse, out[j * 4 + half * 2 + 1] * inverse);
        }
        if (p.lse != nullptr && lane % 4 == 0) {
          p.lse[int64_t{info.q_row} * p.num_kv_heads * p.group_size + head] = NaturalLse(m, sum);
        }
      } else {
        const int64_t at = info.state + int64_t{kv_head} * info.head_stride;
        if (lane % 4 == 0) ptx::StoreL2(p.state_ml + at, float2{sum > 0.0f ? m : -INFINITY, sum}, ptx::kEvictLast);
        float* to = p.state_acc + at * C::kHeadDim + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < C::kHeadDim / 8; ++j) {
          ptx::StoreL2(reinterpret_cast<float2*>(to + j * 8), float2{out[j * 4 + half * 2], out[j * 4 + half * 2 + 1]},
                       ptx::kEvictLast);
        }
      }
    }
  }

  // A task's tickets are drawn when the next one's states are ready to be stored, and looked at when they are: neither the stores
  // nor the draw are waited for. Until then `arrivals` holds its rows, whose slot is free.

  // The rows of a task whose states are stored: its slot is free then.
  static __device__ __forceinline__ void NoteArrivals(SharedStorage<C>& s, const DenseSlot& slot, int wg) {
    if (const int t = threadIdx.x % kWarpgroup; t < 64) {
      const ItemRow& row = slot.rows[wg * 64 + t];
      s.arrivals[wg].rows[t] = {.q_row = row.state == kDirect ? -1 : row.q_row,
                                .set = row.set,
                                .contribution_begin = row.contribution_begin,
                                .contribution_count = row.contribution_count,
                                .arrivals = row.arrivals,
                                .row_in_set = row.row_in_set,
                                .rows_in_set = row.rows_in_set};
      if (t == 0) s.arrivals[wg].kv_head = slot.task.kv_head;
    }
    __syncwarp();
  }

  // For the sets of the task before: the first row of each set within this half draws. The result of DrawTicket, or -1.
  static __device__ int32_t DrawTickets(const KernelParams& p, const DenseArrivals& arrivals, int wg) {
    StressDelay<C>();
    ptx::NamedBarrierSync(kWarpgroupBarrier + wg, kWarpgroup);  // all its states are stored, all rows noted
    const int t = threadIdx.x % kWarpgroup;
    if (t >= 64) return -1;
    const ArrivedRow& info = arrivals.rows[t];
    const bool draws = info.q_row >= 0 && (info.row_in_set == 0 || t == 0);
    return draws ? DrawTicket(p, info.set, arrivals.kv_head) : -1;
  }

  // Folds the sets that those tickets complete.
  static __device__ void FoldComplete(const KernelParams& p, SharedStorage<C>& s, int32_t ticket, int wg) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, t = threadIdx.x % kWarpgroup;
    const ArrivedRow* rows = s.arrivals[wg].rows;
    const int kv_head = s.arrivals[wg].kv_head;
    if (t < 64) {
      const bool last = ticket >= 0 && ticket == rows[t].arrivals - 1;
      if (last) AcquireSet(p, rows[t].set, kv_head);
      s.completes[wg * 64 + t] = last;
    }
    ptx::NamedBarrierSync(kWarpgroupBarrier + wg, kWarpgroup);  // `completes` is written
    const uint8_t* completes = s.completes + wg * 64;
    if (!__any_sync(kAllLanes, completes[lane] | completes[lane + 32])) return;
    // A set may lie across the two halves; the half that completes it folds the other's rows too: those before row 0 of this half,
    // or after row 63.
    const auto completed = [&](int row) { return rows[row].q_row >= 0 && completes[max(0, row - rows[row].row_in_set)]; };
    const int begin = wg == 1 && completed(0) ? -rows[0].row_in_set : 0;
    const int end = 64 + (wg == 0 && completed(63) ? rows[63].rows_in_set - 1 - rows[63].row_in_set : 0);
    const auto row_to_fold = [&](int base) {
      const int row = base + lane / 8, held = min(max(row, 0), 63);
      FoldRow fold{};
      if (row < end && completed(held)) fold = RowToFold(p, rows[held], rows[held].row_in_set + row - held, kv_head);
      return fold;
    };
    int base = begin + warp * 4;
    FoldRow fold = row_to_fold(base);
    LoadedContribution contribution = ContributionOf(p, fold, 0);
#pragma unroll 1
    while (base < end) {  // the next rows' look-up under the latency of these rows' states
      const FoldRow next = row_to_fold(base += 16);
      const LoadedContribution next_contribution = ContributionOf(p, next, 0);
      if (__any_sync(kAllLanes, fold.count != 0)) {
        if constexpr (C::kDeterministic) {
          FoldRowsInOrder<T, C::kHeadDim, kFoldAtOnce>(p, fold, kv_head, contribution);
        } else {
          FoldRows<T, C::kHeadDim, kFoldAtOnce>(p, fold, kv_head, contribution);
        }
      }
      fold = next, contribution = next_contribution;
    }
    ptx::NamedBarrierSync(kWarpgroupBarrier + wg, kWarpgroup);  // the rows are read
  }

  // A dense warpgroup's life: the tasks in the order that LoadDenseTasks drew them. The softmax equations are FlashAttention's
  // (Dao et al. 2022, algorithm 1) in base 2.
  static __device__ void Run(const KernelParams& p, SharedStorage<C>& s, int wg, bool tree_mask) {
    const DenseFrame<C> frame(s, wg);
    const int lane = frame.lane, warp = frame.warp, row = frame.row;
    const float scale_log2 = p.score_scale_log2;
    using S = SharedStorage<C>;
    if (wg == 1) frame.EndTurn();  // the first turn is warpgroup 0's

    // Once this warpgroup has read the Q of the task before.
    const auto gather_q = [&](int n) {
      ptx::BarrierWait(&s.task_known[n % C::kTaskSlots], n / C::kTaskSlots & 1);
      GatherOwnQ(p, s.dense[n % C::kTaskSlots], frame.memory + offsetof(S, q) + wg * C::kQHalfBytes, wg);
    };
    if constexpr (C::kOverlapsDecode) gather_q(0);
    // A tile is there, and in wgmma's proxy even where ordinary copies brought it (gather.cuh).
    const auto await_tile = [&](bool is_there, uint32_t barrier, uint32_t parity) {
      if (!is_there) ptx::BarrierWait(barrier, parity);
      if constexpr (C::kGathers) ptx::FenceProxyAsync();
    };

    RingCursor<C::kStages> k, v;  // over all tasks
    for (int n = 0;; ++n) {
      const int slot_index = n % C::kTaskSlots, q_index = n % C::kQBuffers;
      ptx::BarrierWait(&s.task_known[slot_index], n / C::kTaskSlots & 1);
      const DenseSlot& slot = s.dense[slot_index];
      const int num_tiles = slot.task.num_tiles;
      const bool over = num_tiles < 0;
      if constexpr (C::kOverlapsDecode) {
        ptx::CopyAsyncWaitAll();
        ptx::FenceProxyAsync();  // Q, written by ordinary copies, is read by wgmma
        ptx::NamedBarrierSync(kWarpgroupBarrier + wg, kWarpgroup);
      } else {
        if (!over) ptx::BarrierWait(&s.q_ready[q_index], n / C::kQBuffers & 1);
      }
      const uint32_t q = frame.memory + offsetof(S, q) + q_index * C::kQTileBytes + wg * C::kQHalfBytes;

      float out[kOut];
#pragma unroll
      for (int i = 0; i < kOut; ++i) out[i] = 0.0f;
      RowSoftmax state;
      if (num_tiles > 0) {
        float scores[kScores];
        uint32_t weights[kScores / 2];
        const int end = slot.task.range.end, full_begin = slot.task.range.full_begin, full_end = slot.task.range.full_end;
        int start = slot.task.first;  // of the tile
        bool k_ready = false, v_ready = false;
        for (int i = 0; i < num_tiles; ++i, start += C::kKvTile) {
          await_tile(k_ready, frame.Barrier(offsetof(S, k_ready), k.stage), k.parity);
          frame.BeginTurn();
          Score(scores, q, frame.KvTile(offsetof(S, k), k.stage));
          if (i > 0) {
            await_tile(v_ready, frame.Barrier(offsetof(S, v_ready), v.stage), v.parity);
            Accumulate(out, weights, frame.KvTile(offsetof(S, v), v.stage));
          }
          frame.EndTurn();
          const uint32_t k_free = frame.Barrier(offsetof(S, k_free), k.stage), v_free = frame.Barrier(offsetof(S, v_free), v.stage);
          k.Advance();
          if (i > 0) v.Advance();
          // A look at the next step's barriers, whose latency would be seen there.
          k_ready = ptx::BarrierTest(frame.Barrier(offsetof(S, k_ready), k.stage), k.parity);
          v_ready = ptx::BarrierTest(frame.Barrier(offsetof(S, v_ready), v.stage), v.parity);
          const bool masked = start < full_begin || start + C::kKvTile > full_end;
          // Both products: issuing the second, whose left operand is in registers, takes until it is nearly done.
          ptx::WgmmaWait<0>();
          ptx::PinRegisters(scores);
          ptx::PinRegisters(out);
          frame.Release(k_free);
          if (i > 0) frame.Release(v_free);
          if constexpr (C::kOverlapsDecode) {
            if (i + 1 == num_tiles) {
              ptx::NamedBarrierSync(kWarpgroupBarrier + wg, kWarpgroup);  // Q is read
              gather_q(n + 1);
            }
          }
          Softmax(state, scores, weights, out, scale_log2, masked || p.cap_in > 0.0f, [&] {
            if (p.cap_in > 0.0f) {
#pragma unroll
              for (int j = 0; j < kScores; ++j) scores[j] = Tanh(scores[j] * p.cap_in);
            }
            if (masked) Mask(p, scores, slot, row, start, tree_mask);
          });
        }
        await_tile(v_ready, frame.Barrier(offsetof(S, v_ready), v.stage), v.parity);
        const int present = end - (start - C::kKvTile);
        if (present < C::kKvTile) ClearTail(s.v[v.stage], present, wg);
        Accumulate(out, weights, frame.KvTile(offsetof(S, v), v.stage));
        ptx::WgmmaWait<0>();
        ptx::PinRegisters(out);
        frame.Release(frame.Barrier(offsetof(S, v_free), v.stage));
        v.Advance();
      }
      if constexpr (C::kOverlapsDecode) {
        if (num_tiles == 0) gather_q(n + 1);
      }
      const int32_t ticket = n > 0 ? DrawTickets(p, s.arrivals[wg], wg) : -1;
      if (!over) Finish(p, slot, out, state, scale_log2, wg);
      if (n > 0) FoldComplete(p, s, ticket, wg);
      if (over) break;
      NoteArrivals(s, slot, wg);
      frame.Release(frame.Barrier(offsetof(S, task_done), slot_index));
    }
    if (wg == 0) frame.BeginTurn();  // takes the arrival that is left, so that the barrier ends as it began
  }
};

}  // namespace coppice::attention::cuda
