// Dense tiles of deterministic mode: a tile of 128 tokens is a unit (docs/numerics.md, "Determinism"), whose state is computed from
// the empty one - its largest score is known before its weights - and then folded into its superblock's, in registers. The
// warpgroups take turns as in dense_tile.cuh: one has the values of unit n and the scores of unit n + 1 computed while the other's
// softmax and fold run. Every sum has the order of deterministic_stream_tile.cuh, so that either gives the same bits.
// Layer: attention/cuda.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/dense_tile.cuh"

namespace coppice::attention::cuda {

template <class C>
struct DeterministicDenseTile : DenseTile<C> {
  using Base = DenseTile<C>;
  using Base::kOut, Base::kScores;
  using T = typename C::Element;
  static_assert(C::kKvTile == kHopperDeterministicUnit);
  static constexpr int kSuperblock = kSuperblockUnits * C::kKvTile;

  // A state of the two rows that a thread holds parts of: maximum in base 2, sum over all columns, this thread's columns of the
  // output.
  struct State {
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};
    float out[kOut];
  };

  // Scores become weights relative to the unit's maximum.
  static __device__ __forceinline__ void Weigh(const float (&scores)[kScores], uint32_t (&weights)[kScores / 2], float (&m)[2],
                                               float (&l)[2], float scale_log2) {
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float chains[4];
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
        const float larger = fmaxf(scores[j * 4 + half * 2], scores[j * 4 + half * 2 + 1]);
        chains[j % 4] = j < 4 ? larger : fmaxf(chains[j % 4], larger);
      }
      float largest = fmaxf(fmaxf(chains[0], chains[1]), fmaxf(chains[2], chains[3]));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const UnitMaximum maximum(largest, scale_log2);
      base[half] = maximum.base, m[half] = maximum.m;
    }
    float even[2] = {}, odd[2] = {};  // by token modulo 8, in ascending order
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const float x = UnitWeight(scores[2 * i], scale_log2, base[i % 2]),
                  y = UnitWeight(scores[2 * i + 1], scale_log2, base[i % 2]);
      even[i % 2] += x;
      odd[i % 2] += y;
      weights[i] = Pack<T>(x, y);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      l[half] = even[half] + odd[half];
      l[half] += __shfl_xor_sync(kAllLanes, l[half], 1);
      l[half] += __shfl_xor_sync(kAllLanes, l[half], 2);
    }
  }

  // state = state + a unit's.
  static __device__ __forceinline__ void Fold(State& state, const float (&m)[2], const float (&l)[2], const float (&out)[kOut],
                                              bool first) {
    if (first) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) state.out[i] = out[i];
#pragma unroll
      for (int half = 0; half < 2; ++half) state.m[half] = m[half], state.l[half] = l[half];
      return;
    }
    const FoldWeights weights[2] = {{state.m[0], m[0]}, {state.m[1], m[1]}};
    const bool plain = weights[0].BothCount() && weights[1].BothCount();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.m[half] = weights[half].m;
      state.l[half] = weights[half].Fold(state.l[half], l[half]);
    }
    if (__all_sync(kAllLanes, plain)) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) state.out[i] = weights[i / 2 % 2].FoldBoth(state.out[i], out[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kOut; ++i) state.out[i] = weights[i / 2 % 2].Fold(state.out[i], out[i]);
    }
  }

  // The row's superblocks so far, in device memory, where each thread has its own part: few items have more than one.
  static __device__ __forceinline__ void FoldKept(const DeterministicParams& p, State& superblock, bool first) {
    const int thread = ptx::Here(threadIdx.x) - kWarpgroup;
    float* const kept = p.folds + (int64_t{blockIdx.x} * C::kFoldFloats * C::kFoldThreads + thread);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const m = kept + (kOut + half) * C::kFoldThreads;
      float* const l = kept + (kOut + 2 + half) * C::kFoldThreads;
      const FoldWeights weights(first ? -INFINITY : *m, superblock.m[half]);
      *m = superblock.m[half] = weights.m;
      *l = superblock.l[half] = weights.Fold(first ? 0.0f : *l, superblock.l[half]);
#pragma unroll
      for (int j = 0; j < kOut / 4; ++j) {
#pragma unroll
        for (int i = j * 4 + half * 2; i < j * 4 + half * 2 + 2; ++i) {
          float* const x = kept + i * C::kFoldThreads;
          *x = superblock.out[i] = weights.Fold(first ? 0.0f : *x, superblock.out[i]);
        }
      }
    }
  }

  // As DenseTile::Run.
  static __device__ void Run(const DeterministicParams& p, SharedStorage<C>& s, int wg, bool tree_mask) {
    const DenseFrame<C> frame(s, wg);
    const int lane = frame.lane, warp = frame.warp, row = frame.row;
    const float scale_log2 = p.score_scale_log2;
    using S = SharedStorage<C>;
    if (wg == 1) frame.EndTurn();

    RingCursor<C::kStages> k, v;  // over all tasks
    for (int n = 0;; ++n) {
      const int slot_index = n % C::kQBuffers;
      ptx::BarrierWait(&s.task_known[slot_index], n / C::kQBuffers & 1);
      const DenseSlot& slot = s.dense[slot_index];
      const int num_tiles = slot.task.num_tiles;
      const bool over = num_tiles < 0;
      if (!over) ptx::BarrierWait(&s.q_ready[slot_index], n / C::kQBuffers & 1);
      const uint32_t q = frame.memory + offsetof(S, q) + slot_index * C::kQTileBytes + wg * C::kQHalfBytes;

      State superblock;
#pragma unroll
      for (int i = 0; i < kOut; ++i) superblock.out[i] = 0.0f;
      if (num_tiles > 0) {
        float scores[kScores], m[2], l[2];
        uint32_t weights[kScores / 2];
        const int end = slot.task.range.end, full_begin = slot.task.range.full_begin, full_end = slot.task.range.full_end;
        // Values of the unit at `unit`, from the weights, folded; then next(), which is of the same turn.
        const auto add_values = [&](int unit, bool last, auto&& next) {
          float out[kOut];
#pragma unroll
          for (int j = 0; j < kOut; ++j) out[j] = 0.0f;
          Base::Accumulate(out, weights, frame.KvTile(offsetof(S, v), v.stage));
          ptx::WgmmaWait<0>();
          ptx::PinRegisters(out);
          frame.Release(frame.Barrier(offsetof(S, v_free), v.stage));
          v.Advance();
          const int first = slot.task.first;
          Fold(superblock, m, l, out, unit == first || unit % kSuperblock == 0);
          next();
          const bool ends = (unit + C::kKvTile) % kSuperblock == 0, is_first = unit / kSuperblock == first / kSuperblock;
          if (is_first ? ends && !last : ends || last) FoldKept(p, superblock, is_first);
        };
        int start = slot.task.first;  // of the unit
        for (int i = 0; i < num_tiles; ++i, start += C::kKvTile) {
          ptx::BarrierWait(frame.Barrier(offsetof(S, k_ready), k.stage), k.parity);
          const auto score = [&] {
            Base::Score(scores, q, frame.KvTile(offsetof(S, k), k.stage));
            frame.EndTurn();
          };
          frame.BeginTurn();
          if (i > 0) {
            ptx::BarrierWait(frame.Barrier(offsetof(S, v_ready), v.stage), v.parity);
            add_values(start - C::kKvTile, false, score);
          } else {
            score();
          }
          ptx::WgmmaWait<0>();
          ptx::PinRegisters(scores);
          frame.Release(frame.Barrier(offsetof(S, k_free), k.stage));
          k.Advance();
          if (p.cap_in > 0.0f) {
#pragma unroll
            for (int j = 0; j < kScores; ++j) scores[j] = Tanh(scores[j] * p.cap_in);
          }
          if (start < full_begin || start + C::kKvTile > full_end) Base::Mask(p, scores, slot, row, start, tree_mask);
          Weigh(scores, weights, m, l, scale_log2);
        }
        ptx::BarrierWait(frame.Barrier(offsetof(S, v_ready), v.stage), v.parity);
        const int present = end - (start - C::kKvTile);
        if (present < C::kKvTile) Base::ClearTail(s.v[v.stage], present, wg);
        add_values(start - C::kKvTile, true, [] {});
      }
      const int32_t ticket = n > 0 ? Base::DrawTickets(p, s.arrivals[wg], wg) : -1;
      if (!over) {
        RowSoftmax state;
#pragma unroll
        for (int half = 0; half < 2; ++half) state.reference[half] = superblock.m[half], state.sum[half] = superblock.l[half];
        Base::Finish(p, slot, superblock.out, state, scale_log2, wg);
      }
      if (n > 0) Base::FoldComplete(p, s, ticket, wg);
      if (over) break;
      Base::NoteArrivals(s, slot, wg);
      frame.Release(frame.Barrier(offsetof(S, task_done), slot_index));
    }
    if (wg == 0) frame.BeginTurn();  // takes the arrival that is left, so that the barrier ends as it began
  }
};

}  // namespace coppice::attention::cuda
