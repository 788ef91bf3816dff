// Stream tiles of deterministic mode: the products of stream_tile.cuh, unit by unit (docs/numerics.md, "Determinism"). A unit's K
// comes first, in four steps, whose scores wait in shared memory until the largest is known; then its V. So a unit's state is
// computed from the empty one as a dense tile computes it, in the same order of every sum, and folded into its superblock's. Tiles
// have at most eight rows: two superblocks of sixteen, so far and the unit's, do not fit the registers. Layer: attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/stream_tile.cuh"

namespace coppice::attention::cuda {

template <class C>
class DeterministicStreamWorker : StreamWorker<C> {
  using Base = StreamWorker<C>;
  using Base::kBlocks, Base::kDepth, Base::kTokens, Base::lane_, Base::out_, Base::p_, Base::row_max_, Base::row_sum_, Base::s_,
      Base::worker_;
  using T = typename C::Element;
  using Scores = typename Base::template Scores<1>;
  static_assert(Base::template kTogether<1> == kBlocks);
  static constexpr int kUnit = kHopperDeterministicUnit;
  static constexpr int kPlaces = 2 * C::kStreamSteps;  // of the ring: K or V of a step each

 public:
  __device__ DeterministicStreamWorker(const DeterministicParams& p, KvMaps maps, SharedStorage<C>& s, int worker, bool tree_mask,
                                       int steps_to_claim)
      : Base(p, maps, s, worker, tree_mask, 1, 2 * steps_to_claim),
        kept_(p.folds + (int64_t{blockIdx.x} * C::kFoldFloats * C::kFoldThreads + threadIdx.x - kWarpgroup)) {}

  // One loop, as StreamWorker::Run, over steps of K and of V.
  __device__ void Run() {
    StreamTask task{};
    int head = 0, position = 0, end = 0, unit_begin = 0;
    Part part = Part::kNone;
    for (;;) {
      Fill();
      if (part == Part::kNone) {
        if (this->current_ == this->fetched_) {  // nothing is left to do, nor to load
          ptx::BarrierWait(&s_.stream[worker_].known[Base::Place(this->fetched_)], Base::Phase(this->fetched_));
          if (this->SlotOf(this->fetched_).task.head_end < 0) return;
          continue;
        }
        task = this->slot().task;
        head = task.head_begin, end = max(task.range.end, task.first);
        part = Part::kBegin;
      }
      if (part == Part::kBegin) {
        Begin(head);
        position = unit_begin = task.first;
        part = position < end ? Part::kScores : Part::kEnd;
      }
      const int unit_end = min(end, unit_begin / kUnit * kUnit + kUnit);
      if (part == Part::kScores) {
        ScoreStep(task, position);
        position += kTokens;
        if (position < unit_end) continue;
        FindMaxima();
        position = unit_begin;
        part = Part::kValues;
        continue;
      }
      if (part == Part::kValues) {
        ValueStep(task, position);
        position += kTokens;
        if (position < unit_end) continue;
        FoldUnit(unit_end, end);
        unit_begin = position;
        part = Part::kScores;
        if (position < end) continue;
      }
      Finish(task, head);
      part = Part::kBegin;
      if (++head < task.head_end) continue;
      this->Complete(task);
      Forget();
      __syncwarp();  // the task's rows are read; its slot may be filled again
      ++this->current_;
      part = Part::kNone;
    }
  }

 private:
  // Of a task under one kv head: what comes next.
  enum class Part : int { kNone, kBegin, kScores, kValues, kEnd };

  // ---- The loading side: the cursor of StreamWorker, over a unit's K and then over its V.

  __device__ void BeginUnit(int position) {
    load_values_ = false;
    load_unit_ = this->load_position_ = position;
  }
  __device__ int load_unit_end() const { return min(this->load_end_, load_unit_ / kUnit * kUnit + kUnit); }

  // Moves the cursor to the next step that exists. False if there is none within one task of the current one.
  __device__ bool FindStep() {
    while (this->load_position_ >= load_unit_end()) {
      if (!load_values_ && load_unit_ < this->load_end_) {
        load_values_ = true;
        this->load_position_ = load_unit_;
      } else if (this->load_position_ < this->load_end_) {
        BeginUnit(this->load_position_);
      } else if (this->load_head_ + 1 < this->load_head_end_ && this->load_first_ < this->load_end_) {
        ++this->load_head_;
        BeginUnit(this->load_first_);
      } else if (this->Advance()) {
        BeginUnit(this->load_first_);
      } else {
        return false;
      }
    }
    return true;
  }

  __device__ void Fill() {
    while (this->in_ring_ < kPlaces && FindStep()) Load();
    this->Want();
  }

  // The places lie one after the other, and so do their barriers.
  __device__ uint8_t* PlaceAt(int i) const { return &s_.rings[worker_][0][0][0] + i * C::kStreamUnitBytes; }
  __device__ uint64_t* ReadyAt(int i) const { return &s_.stream[worker_].ready[0][0] + i; }

  // Starts the copies of the step at the cursor, a box a lane.
  __device__ void Load() {
    const int position = this->load_position_;
    const int boxes = min(kTokens >> p_.box_shift, (this->load_end_ - position + p_.box_tokens - 1) >> p_.box_shift);
    const int first_page = position >> p_.page_shift, last_page = (this->load_end_ - 1) >> p_.page_shift;
    const int last_of_step = min(last_page, (position + kTokens - 1) >> p_.page_shift);
    if (first_page < this->pages_from_ || last_of_step >= this->pages_from_ + kPagesHeld) {
      this->pages_from_ = first_page;
      this->pages_ = first_page + lane_ <= last_page ? __ldg(p_.page_indices + this->load_page_begin_ + first_page + lane_) : 0;
    }
    const int from = position + (lane_ << p_.box_shift);
    const int page = __shfl_sync(kAllLanes, this->pages_, ((from >> p_.page_shift) - this->pages_from_) & 31);
    uint64_t* ready = ReadyAt(this->load_slot_);
    if (lane_ == 0) ptx::BarrierArriveExpectBytes(ready, (boxes << p_.box_shift) * C::kHeadDim * 2);
    __syncwarp();  // the barrier expects the bytes before any arrive
    if (lane_ < boxes) {
      LoadBox(p_, load_values_ ? this->maps_.v : this->maps_.k, ready,
              PlaceAt(this->load_slot_) + (lane_ << p_.box_shift) / 8 * C::kGroupBytes, UnitOf(p_, page, this->load_head_), from,
              C::kHeadChunks, C::kGroupBytes,
              this->load_once_ && this->steps_to_claim_ <= 0 ? ptx::kEvictFirst : ptx::kEvictNormal);
    }
    --this->steps_to_claim_;
    this->load_position_ += kTokens;
    this->load_slot_ = this->load_slot_ + 1 == kPlaces ? 0 : this->load_slot_ + 1;
    ++this->in_ring_;
  }

  // Waits for the oldest step. Release gives its place back, once all lanes have read it.
  __device__ uint8_t* Await() {
    ptx::BarrierWait(ReadyAt(this->slot_), this->parity_);
    return PlaceAt(this->slot_);
  }
  __device__ void Release() {
    __syncwarp();
    --this->in_ring_;
    if (++this->slot_ == kPlaces) this->slot_ = 0, this->parity_ ^= 1;
  }

  // ---- The computing side. A lane's rows are lane % 4 * 2 + c; of their output it holds out_[0][d][c] and [c + 2].

  __device__ void Begin(int head) {
    Base::template Begin<1>(head);
    superblock_begins_ = true, row_kept_ = false;
#pragma unroll
    for (int c = 0; c < 2; ++c) m_[c] = -INFINITY, l_[c] = 0.0f;
#pragma unroll
    for (int i = 0; i < kOut; ++i) superblock_[i] = 0.0f;
  }

  __device__ float4& ScoresOf(int position) const { return s_.scores[worker_].of_lane[position % kUnit / 16][lane_]; }

  // Scores of all rows and the next kTokens tokens.
  __device__ void ScoreStep(const StreamTask& task, int position) {
    Scores scores;
    Base::template Score<1>(scores, ptx::SharedAddress(Await()), 0);
    if (position < task.range.full_begin || position + kTokens > task.range.full_end) {
      Base::template Mask<1>(task, position, scores);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const float(&x)[4] = scores[b][0];
      ScoresOf(position + b * 16) = {x[0], x[1], x[2], x[3]};
#pragma unroll
      for (int c = 0; c < 2; ++c) row_max_[0][c] = fmaxf(row_max_[0][c], fmaxf(x[c], x[c + 2]));
    }
    Release();
  }

  __device__ void FindMaxima() {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float& x = row_max_[0][c];
#pragma unroll
      for (int d = 4; d < 32; d *= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, d));
    }
  }

  // Weights of kTokens tokens, and their values.
  __device__ void ValueStep(const StreamTask& task, int position) {
    float base[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) base[c] = UnitMaximum(row_max_[0][c], p_.score_scale_log2).base;
    uint32_t weights[kBlocks][1][2];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const float4 scores = ScoresOf(position + b * 16);
      float x[4] = {scores.x, scores.y, scores.z, scores.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = UnitWeight(x[i], p_.score_scale_log2, base[i % 2]);
        row_sum_[0][i % 2] += x[i];
      }
      weights[b][0][0] = ptx::TransposeMatrix(Pack<T>(x[0], x[1]));
      weights[b][0][1] = ptx::TransposeMatrix(Pack<T>(x[2], x[3]));
    }
    uint8_t* const v = Await();
    if (position + kTokens > task.range.end) this->ClearTail(v, task.range.end - position);
    Base::template Accumulate<1>(weights, ptx::SharedAddress(v), 0);
    Release();
  }

  // Folds the state of the unit that ends at `unit_end` into its superblock's, and leaves the empty one. The task ends at `end`.
  __device__ void FoldUnit(int unit_end, int end) {
    float m[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2) row_sum_[0][c] += __shfl_xor_sync(kAllLanes, row_sum_[0][c], d);
      m[c] = UnitMaximum(row_max_[0][c], p_.score_scale_log2).m;
    }
    if (superblock_begins_) {
#pragma unroll
      for (int c = 0; c < 2; ++c) m_[c] = m[c], l_[c] = row_sum_[0][c];
#pragma unroll
      for (int i = 0; i < kOut; ++i) superblock_[i] = out_[0][i / 4][i % 4];
    } else {
      const FoldWeights weights[2] = {{m_[0], m[0]}, {m_[1], m[1]}};
#pragma unroll
      for (int c = 0; c < 2; ++c) m_[c] = weights[c].m, l_[c] = weights[c].Fold(l_[c], row_sum_[0][c]);
#pragma unroll
      for (int i = 0; i < kOut; ++i) superblock_[i] = weights[i % 2].Fold(superblock_[i], out_[0][i / 4][i % 4]);
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) row_max_[0][c] = -INFINITY, row_sum_[0][c] = 0.0f;
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[0][i / 4][i % 4] = 0.0f;
    const bool last = unit_end >= end;
    superblock_begins_ = unit_end % (kSuperblockUnits * kUnit) == 0;
    if (row_kept_ ? superblock_begins_ || last : superblock_begins_ && !last) {
      FoldKept();
      row_kept_ = true;
    }
  }

  // The row's superblocks so far, in device memory, where each thread has its own part: few tasks have more than one.
  __device__ void FoldKept() {
    const auto kept = [&](int i) { return kept_ + i * C::kFoldThreads; };
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float *const m = kept(kOut + c), *const l = kept(kOut + 2 + c);
      const FoldWeights weights(row_kept_ ? *m : -INFINITY, m_[c]);
      *m = m_[c] = weights.m;
      *l = l_[c] = weights.Fold(row_kept_ ? *l : 0.0f, l_[c]);
#pragma unroll
      for (int i = c; i < kOut; i += 2) {
        float* const x = kept(i);
        *x = superblock_[i] = weights.Fold(row_kept_ ? *x : 0.0f, superblock_[i]);
      }
    }
  }

  __device__ void Finish(const StreamTask& task, int head) {
#pragma unroll
    for (int c = 0; c < 2; ++c) row_max_[0][c] = m_[c], row_sum_[0][c] = l_[c];
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[0][i / 4][i % 4] = superblock_[i];
    Base::template Finish<1>(task, head);
  }

  __device__ void Forget() {
    Base::Forget();
#pragma unroll
    for (int i = 0; i < kOut; ++i) superblock_[i] = 0.0f;
    m_[0] = m_[1] = l_[0] = l_[1] = 0.0f;
  }

  static constexpr int kOut = kDepth * 4;  // registers of output

  float* const kept_;
  bool load_values_ = true;  // the cursor is at V, and a unit's end
  int load_unit_ = 0;        // where the unit at the cursor begins
  // The superblock so far.
  float superblock_[kOut];
  float m_[2], l_[2];  // m: in base 2
  bool superblock_begins_ = true, row_kept_ = false;
};

}  // namespace coppice::attention::cuda
