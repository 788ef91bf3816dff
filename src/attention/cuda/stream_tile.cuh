// Stream tiles: at most 16 rows against a run of KV, bound by memory bandwidth. Each warp works alone on tasks that LoadStreamTasks
// looks up for it: it keeps its own ring of bulk copies full across items, and multiplies with KV as the tall operand (S^T = K Q^T,
// O^T = V^T P^T), so that one row costs eight columns of mma.sync instead of sixteen rows and the weights never leave registers.
// Bifurcated Attention section 4 and Hydragen section 3.1 call this the suffix part. Layer: attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/deterministic_fold.cuh"
#include "attention/cuda/gather.cuh"
#include "attention/cuda/load.cuh"
#include "attention/cuda/stress_delay.cuh"

namespace coppice::attention::cuda {

// KV that is read once is marked to leave the L2 first, so that Q, states and shared KV stay there. It then only takes the place of
// its like: a warp's first steps must take that place from what earlier work left, or all streams share too little of the L2
// (nothing shared, 64 x 8192 tokens: 0.504 ms without, 0.487 with these).
inline constexpr int kStepsToClaimL2 = 12;

template <class C>
class StreamWorker {
 protected:
  using T = typename C::Element;
  static constexpr int kTokens = C::kStreamTokens;
  static constexpr int kSteps = C::kStreamSteps;
  static constexpr int kBlocks = kTokens / 16;                   // token blocks (mma's M) of a step
  static constexpr int kDepth = C::kHeadDim / 16;                // mma's K steps of the scores, and M blocks of the output
  static constexpr int kFoldAtOnce = C::kDeterministic ? 2 : 4;  // states of a row on their way together

 public:
  // worker: of the CTA's stream warps. warps_per_task: how many of them read a task together, a step each in turn; one, or all.
  __device__ StreamWorker(const ParamsOf<C>& p, KvMaps maps, SharedStorage<C>& s, int worker, bool tree_mask, int warps_per_task,
                          int steps_to_claim)
      : p_(p),
        maps_(maps),
        s_(s),
        worker_(worker),
        tree_mask_(tree_mask),
        stride_(warps_per_task * kTokens),
        steps_to_claim_(steps_to_claim) {}

  // One loop over steps, whatever task and head they belong to, so that the code of each part exists once (instruction cache).
  __device__ void Run() {
    StreamTask task{};
    int head = 0, position = 0, end = 0;
    bool open = false;
    for (;;) {
      Fill();
      if (!open) {
        if (current_ == fetched_) {  // nothing is left to do, nor to load
          ptx::BarrierWait(&s_.stream[worker_].known[Place(fetched_)], Phase(fetched_));
          if (SlotOf(fetched_).task.head_end < 0) return;
          continue;
        }
        task = slot().task;
        head = task.head_begin, position = task.first, end = max(task.range.end, task.first);
        open = true;
        if (merges_in_shared()) FetchStates(task);
      }
      const bool narrow = task.rows <= 8;
      if (position == task.first) narrow ? Begin<1>(head) : Begin<2>(head);
      if (position < end) {
        narrow ? Step<1>(task, position) : Step<2>(task, position);
        position += stride_;
      }
      if (position < end) continue;
      if (is_cooperative() && current_ > 0) AwaitCta();  // all have read what this warp held of the task before
      narrow ? Finish<1>(task, head) : Finish<2>(task, head);
      position = task.first;
      if (++head < task.head_end) continue;
      if (is_cooperative()) CombineCta(task);
      merges_in_shared() ? FoldShared(task) : Complete(task);
      Forget();
      __syncwarp();  // the task's rows are read; its slot may be filled again
      ++current_;
      open = false;
    }
  }

 protected:
  // ---- The loading side: a cursor that runs up to kSteps steps and one task ahead. LoadStreamTasks fills the slots of tasks.

  static __device__ __forceinline__ int Place(int task) { return task % C::kStreamSlots; }
  __device__ __forceinline__ const StreamSlot& SlotOf(int task) const { return s_.stream[worker_].slots[Place(task)]; }
  static __device__ __forceinline__ uint32_t Phase(int task) { return task / C::kStreamSlots & 1; }

  // Moves the cursor to the next task. False if it is not known yet, or there is none.
  __device__ bool Advance() {
    if (!__all_sync(kAllLanes, ptx::BarrierTest(&s_.stream[worker_].known[Place(fetched_)], Phase(fetched_)))) return false;
    const StreamSlot& slot = SlotOf(fetched_);
    if (slot.task.head_end < 0) return false;
    ++fetched_;
    load_first_ = load_position_ = slot.task.first;
    load_end_ = max(slot.task.range.end, slot.task.first);  // an empty range loads nothing
    load_head_ = slot.task.head_begin;
    load_head_end_ = slot.task.head_end;
    load_page_begin_ = slot.task.page_begin;
    load_once_ = slot.task.read_once;
    pages_ = slot.pages[lane_];
    if constexpr (C::kGathers) {
      if (slot.task.pages_from != load_first_ && load_first_ < load_end_) LookUpPages();
    } else {
      pages_from_ = slot.task.pages_from;
    }
    return true;
  }

  // Asks for the next task shortly before the cursor needs it, not sooner: what one warp has drawn no other can take. The slot is
  // free, for all lanes have left the task that was there.
  __device__ void Want() {
    if (wanted_ > fetched_ || wanted_ == current_ + C::kStreamSlots) return;
    const int tokens_left = load_end_ - load_position_ + (load_head_end_ - load_head_ - 1) * (load_end_ - load_first_);
    if (tokens_left > kWantTokens) return;
    if (lane_ == 0) ptx::BarrierArrive(&s_.stream[worker_].wanted[Place(wanted_)]);
    ++wanted_;
  }

  // Moves the cursor to the next step that exists. False if there is none within one task of the current one.
  __device__ bool FindStep() {
    while (load_position_ >= load_end_) {
      if (load_head_ + 1 < load_head_end_ && load_first_ < load_end_) {
        ++load_head_;
        load_position_ = load_first_;
      } else if (!Advance()) {
        return false;
      }
    }
    return true;
  }

  // Fills the ring.
  __device__ void Fill() {
    while (in_ring_ < kSteps && FindStep()) {
      if constexpr (C::kGathers) {
        Gather();
      } else {
        Load();
      }
    }
    Want();
  }

  // Starts the copies of the step at the cursor, a box a lane: K's by the first half of the warp, V's by the second.
  __device__ void Load() {
    const int boxes = min(kTokens >> p_.box_shift, (load_end_ - load_position_ + p_.box_tokens - 1) >> p_.box_shift);
    const int first_page = load_position_ >> p_.page_shift, last_page = (load_end_ - 1) >> p_.page_shift;
    if (first_page < pages_from_ || first_page + 3 >= pages_from_ + kPagesHeld) {  // a step lies on at most four pages
      pages_from_ = first_page;
      pages_ = first_page + lane_ <= last_page ? __ldg(p_.page_indices + load_page_begin_ + first_page + lane_) : 0;
    }
    const int half = lane_ / 16, box = lane_ % 16, position = load_position_ + (box << p_.box_shift);
    const int page = __shfl_sync(kAllLanes, pages_, ((position >> p_.page_shift) - pages_from_) & 31);
    uint64_t* ready = &s_.stream[worker_].ready[load_slot_][half];
    if (box == 0) ptx::BarrierArriveExpectBytes(ready, (boxes << p_.box_shift) * C::kHeadDim * 2);
    __syncwarp();  // the barriers expect the bytes before any arrive
    if (box < boxes) {
      LoadBox(p_, half == 0 ? maps_.k : maps_.v, ready,
              s_.rings[worker_][load_slot_][half] + (box << p_.box_shift) / 8 * C::kGroupBytes, UnitOf(p_, page, load_head_),
              position, C::kHeadChunks, C::kGroupBytes, load_once_ && steps_to_claim_ <= 0 ? ptx::kEvictFirst : ptx::kEvictNormal);
    }
    AdvanceStep();
  }
  __device__ void AdvanceStep() {
    --steps_to_claim_;
    load_position_ += stride_;
    load_slot_ = load_slot_ + 1 == kSteps ? 0 : load_slot_ + 1;
    ++in_ring_;
  }

  // The same of pages of few tokens.
  __device__ void Gather() {
    static_assert(kTokens == 32);
    const TokenBlock block(p_, pages_, load_position_, load_end_);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      uint64_t* const ready = &s_.stream[worker_].ready[load_slot_][half];
      CopyTokens<C>(p_, half == 0 ? maps_.k : maps_.v, half == 0 ? p_.k : p_.v, load_head_, block, ready,
                    s_.rings[worker_][load_slot_][half], load_once_ && steps_to_claim_ <= 0 ? ptx::kEvictFirst : ptx::kEvictNormal);
      ptx::CopyAsyncArrive(ready);
    }
    AdvanceStep();
    LookUpPages();
  }
  // Asks for the pages of the cursor's next step in this task, a token a lane: the step would wait for them.
  __device__ void LookUpPages() {
    const int position = load_position_ < load_end_ ? load_position_ : load_first_;  // of the next kv head
    pages_ = PageOf(p_, load_page_begin_, min(position + lane_, load_end_ - 1));
  }

  // Waits for K (0) or V (1) of the oldest step. Release gives its place back, once all lanes have read it.
  __device__ uint8_t* Await(int half) {
    ptx::BarrierWait(&s_.stream[worker_].ready[slot_][half], parity_);
    return s_.rings[worker_][slot_][half];
  }
  __device__ void Release() {
    if constexpr (C::kGathers) ptx::FenceProxyAsync();  // what single tokens' copies wrote before the copy engine's next ones
    __syncwarp();
    --in_ring_;
    if (++slot_ == kSteps) slot_ = 0, parity_ ^= 1;
  }

  // ---- The computing side.

  // Shared-memory address of the 16-byte piece `piece` of `token` in a unit: [8 tokens][chunk][8][64], swizzled.
  static __device__ __forceinline__ uint32_t Piece(uint32_t unit, int token, int piece) {
    return unit + token / 8 * C::kGroupBytes + piece / 8 * 1024 + token % 8 * 128 + ((piece % 8) ^ (token % 8)) * 16;
  }

  // The current task's. Not all of it is kept in registers.
  __device__ __forceinline__ const StreamSlot& slot() const { return SlotOf(current_); }
  // The same in all lanes, which call together: the compiler knows by the vote.
  __device__ __forceinline__ bool keeps_states() const {
    return !C::kDeterministic && __any_sync(kAllLanes, slot().task.shared_of_row != 0);
  }
  __device__ __forceinline__ bool is_cooperative() const { return !C::kDeterministic && stride_ != kTokens; }
  __device__ __forceinline__ bool merges_in_shared() const { return keeps_states() && !is_cooperative(); }
  __device__ __forceinline__ SharedStates<C>& shared_states() const { return s_.shared_states[ptx::Here(worker_)]; }
  // The first shared state of a row under a kv head.
  __device__ __forceinline__ int SharedBegin(const StreamTask& task, int head, int row) const {
    return ((head - task.head_begin) * task.rows + row) * slot().task.shared_of_row;
  }

  // Lets the compiler forget the registers of a head across Complete: it would save and restore them.
  __device__ void Forget() {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        q_[n][d][0] = q_[n][d][1] = 0;
        out_[n][d][0] = out_[n][d][1] = out_[n][d][2] = out_[n][d][3] = 0.0f;
      }
      row_max_[n][0] = row_max_[n][1] = row_sum_[n][0] = row_sum_[n][1] = 0.0f;
    }
  }

  // kColumns: blocks of eight rows.
  template <int kColumns>
  __device__ void Begin(int head) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) LoadQ(q_[n], slot().rows, n, head);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      row_max_[n][0] = row_max_[n][1] = -INFINITY;
      row_sum_[n][0] = row_sum_[n][1] = 0.0f;
#pragma unroll
      for (int i = 0; i < kDepth * 4; ++i) out_[n][i / 4][i % 4] = 0.0f;
    }
    if constexpr (kLikeOverlapped<kColumns>) {
#pragma unroll
      for (int i = 0; i < 8; ++i) BlockSum(i / 2, i % 2) = 0.0f;
    }
  }

  // The warp that takes a task of a plan with overlapped tiles depends on the moment, the task's state must not: a stream tile of
  // few rows adds as an overlapped tile does (OverlappedTile). Scores in one chain; a row's reference moves with each 32 tokens if
  // it must; a sum for each 16 of 64.
  template <int kColumns>
  static constexpr bool kLikeOverlapped = C::kOverlapsDecode&& kColumns == 1;

  // Token blocks whose scores are in registers together: both of a step, unless the output of two column blocks takes their place.
  template <int kColumns>
  static constexpr int kTogether = kColumns == 1 || C::kHeadDim == 64 ? kBlocks : 1;
  template <int kColumns>
  using Scores = float[kTogether<kColumns>][kColumns][4];

  // All rows of the task against the next kTokens tokens.
  template <int kColumns>
  __device__ void Step(const StreamTask& task, int position) {
#pragma unroll 1
    for (int first = 0; first < kBlocks; first += kTogether<kColumns>) {
      Scores<kColumns> scores;
      Score<kColumns>(scores, ptx::SharedAddress(Await(0)), first);
      const int start = position + first * 16;
      if (start < task.range.full_begin || start + 16 * kTogether < kColumns >> task.range.full_end)
        Mask<kColumns>(task, start, scores);
      uint32_t weights[kTogether<kColumns>][kColumns][2];
      Weigh<kColumns>(scores, weights, (position - task.first) / kTokens % 2);
      uint8_t* const v = Await(1);
      if (first == 0 && position + kTokens > task.range.end) ClearTail(v, task.range.end - position);
      Accumulate<kColumns>(weights, ptx::SharedAddress(v), first);
    }
    Release();
  }

  // Scores of the token blocks from `first` on, capped.
  template <int kColumns>
  __device__ void Score(Scores<kColumns>& scores, uint32_t k, int first) {
    // Two sums for a single column block: half the length of the chain of products, which nothing else hides. Deterministic mode
    // has the one sum of a dense tile.
    constexpr int kSums = kColumns == 1 && !C::kDeterministic && !kLikeOverlapped<kColumns> ? 2 : 1;
    Scores<kColumns> sums[kSums] = {};
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
#pragma unroll
      for (int b = 0; b < kTogether<kColumns>; ++b) {
        uint32_t a[4];
        ptx::LoadMatrix4(a, Piece(k, (first + b) * 16 + lane_ % 16, d * 2 + lane_ / 16));
#pragma unroll
        for (int n = 0; n < kColumns; ++n) ptx::MmaM16N8K16<T>(sums[d % kSums][b][n], a, q_[n][d][0], q_[n][d][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether<kColumns> * kColumns * 4; ++i) {
      const int b = i / (kColumns * 4), n = i / 4 % kColumns;
      float x = sums[0][b][n][i % 4];
      if constexpr (kSums == 2) x += sums[1][b][n][i % 4];
      scores[b][n][i % 4] = x;
    }
    if (p_.cap_in > 0.0f) {
#pragma unroll
      for (int i = 0; i < kTogether<kColumns> * kColumns * 4; ++i) {
        float& x = scores[i / (kColumns * 4)][i / 4 % kColumns][i % 4];
        x = Tanh(x * p_.cap_in);
      }
    }
  }

  // The softmax step: weights as the B operand of the second product, and the output so far relative to the new maximum. half:
  // which 32 tokens of 64.
  template <int kColumns>
  __device__ void Weigh(Scores<kColumns>& scores, uint32_t (&weights)[kTogether<kColumns>][kColumns][2], int half) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      float rescale[2] = {1.0f, 1.0f};
      if constexpr (kLikeOverlapped<kColumns>) {
        SoftmaxLikeOverlapped<kColumns>(scores, half, rescale);
      } else {
#pragma unroll
        for (int c = 0; c < 2; ++c) Softmax<kColumns>(scores, n, c, row_max_[n][c], row_sum_[n][c], rescale[c]);
      }
#pragma unroll
      for (int b = 0; b < kTogether<kColumns>; ++b) {
        weights[b][n][0] = ptx::TransposeMatrix(Pack<T>(scores[b][n][0], scores[b][n][1]));
        weights[b][n][1] = ptx::TransposeMatrix(Pack<T>(scores[b][n][2], scores[b][n][3]));
      }
      if (__any_sync(kAllLanes, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
#pragma unroll
          for (int i = 0; i < 4; ++i) out_[n][d][i] *= rescale[i % 2];
        }
      }
    }
  }

  template <int kColumns>
  __device__ void Accumulate(const uint32_t (&weights)[kTogether<kColumns>][kColumns][2], uint32_t v, int first) {
#pragma unroll
    for (int b = 0; b < kTogether<kColumns>; ++b) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        uint32_t a[4];
        ptx::LoadMatrix4Transposed(a, Piece(v, (first + b) * 16 + lane_ / 16 * 8 + lane_ % 8, d * 2 + lane_ / 8 % 2));
#pragma unroll
        for (int n = 0; n < kColumns; ++n) ptx::MmaM16N8K16<T>(out_[n][d], a, weights[b][n][0], weights[b][n][1]);
      }
    }
  }

  // Q^T of column block `n` as mma's B operand, straight from global memory: lane / 4 is the row, lane % 4 the pair of elements.
  __device__ void LoadQ(uint32_t (&q)[kDepth][2], const RowInfo* rows, int n, int head) {
    const RowInfo& info = rows[n * 8 + lane_ / 4];
    const bool exists = info.q_row >= 0;
    const T* from = static_cast<const T*>(p_.q) + info.q_row * p_.q_row_stride +
                    int64_t{head * p_.group_size + info.head_in_group} * p_.head_dim + lane_ % 4 * 2;
    ptx::Pin(from);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = d * 16 + half * 8;
        q[d][half] = exists && column < p_.head_dim ? __ldg(reinterpret_cast<const uint32_t*>(from + column)) : 0;
      }
    }
  }

  // scores[b][n]: tokens b * 16 + lane / 4 (+ 8 for elements 2, 3), rows n * 8 + lane % 4 * 2 (+ 1 for elements 1, 3).
  template <int kColumns>
  __device__ void Mask(const StreamTask& task, int start, Scores<kColumns>& scores) {
    const RowInfo* rows = slot().rows;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const VisibleRange visible(p_, rows[n * 8 + lane_ % 4 * 2 + c], task.range.begin, task.range.end, tree_mask_);
#pragma unroll
        for (int i = 0; i < 2 * kTogether<kColumns>; ++i) {
          if (!visible.Has(start + lane_ / 4 + i * 8)) scores[i / 2][n][i % 2 * 2 + c] = -INFINITY;
        }
      }
    }
  }

  // One step of the running softmax (FlashAttention, algorithm 1, base 2) for the row that elements c and c + 2 belong to.
  template <int kColumns>
  __device__ void Softmax(Scores<kColumns>& scores, int n, int c, float& row_max, float& row_sum, float& rescale) {
    float m = row_max;
#pragma unroll
    for (int b = 0; b < kTogether<kColumns>; ++b) m = fmaxf(m, fmaxf(scores[b][n][c], scores[b][n][c + 2]));
#pragma unroll
    for (int d = 4; d < 32; d *= 2) m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, d));
    const float base = m == -INFINITY ? 0.0f : m * p_.score_scale_log2;
    // Nothing is summed yet where no token was seen.
    rescale = m == row_max || row_max == -INFINITY ? 1.0f : ptx::Exp2(row_max * p_.score_scale_log2 - base);
    row_sum *= rescale;
#pragma unroll
    for (int b = 0; b < kTogether<kColumns>; ++b) {
#pragma unroll
      for (int i = c; i < 4; i += 2) {
        scores[b][n][i] = ptx::Exp2(scores[b][n][i] * p_.score_scale_log2 - base);
        row_sum += scores[b][n][i];
      }
    }
    row_max = m;
  }

  // Of the weights of tokens [16 b, 16 b + 16) of each 64. In registers of the second column block, which such a task lacks.
  __device__ __forceinline__ float& BlockSum(int b, int c) {
    return b == 0 ? row_sum_[0][c] : b == 1 ? row_sum_[1][c] : b == 2 ? row_max_[1][c] : out_[1][0][c];
  }

  // The same relative to references that move only if they must, for tokens of the first or second half of 64.
  template <int kColumns>
  __device__ __forceinline__ void SoftmaxLikeOverlapped(Scores<kColumns>& scores, int half, float (&rescale)[2]) {
    float m[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      m[c] = fmaxf(fmaxf(scores[0][0][c], scores[0][0][c + 2]), fmaxf(scores[1][0][c], scores[1][0][c + 2]));
    }
    const float scale = p_.score_scale_log2;
    if (__any_sync(kAllLanes, ReferenceMoves(row_max_[0][0], m[0], scale) || ReferenceMoves(row_max_[0][1], m[1], scale))) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int d = 4; d < 32; d *= 2) m[c] = fmaxf(m[c], __shfl_xor_sync(kAllLanes, m[c], d));
        rescale[c] = MoveReference(row_max_[0][c], m[c], scale);
#pragma unroll
        for (int b = 0; b < 4; ++b) BlockSum(b, c) *= rescale[c];
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float base = BaseOfReference(row_max_[0][c], scale);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
#pragma unroll
        for (int i = c; i < 4; i += 2) {
          const float weight = scores[b][0][i] = ptx::Exp2(scores[b][0][i] * scale - base);
          BlockSum(b, c) += half == 0 ? weight : 0.0f;
          BlockSum(b + 2, c) += half == 0 ? 0.0f : weight;
        }
      }
    }
  }

  // V rows past the end may hold NaN, which no weight of zero removes.
  __device__ void ClearTail(uint8_t* v, int present) {
    constexpr int kPieces = C::kHeadDim / 8;
#pragma unroll 1
    for (int i = max(present, 0) * kPieces + lane_; i < kTokens * kPieces; i += 32) {
      const int token = i / kPieces, piece = i % kPieces;
      *reinterpret_cast<uint4*>(v + token / 8 * C::kGroupBytes + piece / 8 * 1024 + token % 8 * 128 + piece % 8 * 16) = uint4{};
    }
    ptx::FenceProxyAsync();  // these writes before the copy engine's next ones
    __syncwarp();
  }

  // Stores states or output; in deterministic mode row_max_ is in base 2, and row_sum_ that of all lanes. out_[n][d]: elements d *
  // 16 + lane / 4 (+ 8 for registers 2, 3) of rows n * 8 + lane % 4 * 2 (+ 1 for registers 1, 3).
  template <int kColumns>
  __device__ void Finish(const StreamTask& task, int head) {
    const RowInfo* rows = slot().rows;
    const bool holds = keeps_states();
    if constexpr (kLikeOverlapped<kColumns>) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int b = 0; b < 4; ++b) {
#pragma unroll
          for (int d = 4; d < 32; d *= 2) BlockSum(b, c) += __shfl_xor_sync(kAllLanes, BlockSum(b, c), d);
        }
        row_sum_[0][c] = BlockSum(0, c) + BlockSum(1, c) + BlockSum(2, c) + BlockSum(3, c);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns && !C::kDeterministic && !kLikeOverlapped<kColumns>; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int d = 4; d < 32; d *= 2) row_sum_[n][c] += __shfl_xor_sync(kAllLanes, row_sum_[n][c], d);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      float scale[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const RowInfo& info = rows[n * 8 + lane_ % 4 * 2 + c];
        const float scale_log2 = C::kDeterministic ? 1.0f : p_.score_scale_log2;
        const float sum = row_sum_[n][c], m = sum > 0.0f ? row_max_[n][c] * scale_log2 : -INFINITY;
        scale[c] = Normalizer(p_, sum);
        if (info.q_row < 0) continue;
        if (info.state == kDirect && !holds) {
          const int qo_head = head * p_.group_size + info.head_in_group;
          if (p_.lse != nullptr && lane_ < 4)
            p_.lse[int64_t{info.q_row} * p_.num_kv_heads * p_.group_size + qo_head] = NaturalLse(m, sum);
        } else {
          int64_t at = info.state + int64_t{head} * info.head_stride;
          StateArrays to = StoredArrays(p_);
          if (holds) {
            const int first = SharedBegin(task, head, n * 8 + lane_ % 4 * 2 + c);
            at = first + __ffs(slot().task.own >> first) - 1;
            to = {shared_states().acc[0], shared_states().ml};
          }
          if (lane_ < 4) to.ml[at] = {m, sum};
          float* const acc = to.acc + at * C::kHeadDim + lane_ / 4;
#pragma unroll
          for (int d = 0; d < kDepth; ++d) acc[d * 16] = out_[n][d][c], acc[d * 16 + 8] = out_[n][d][c + 2];
        }
      }
      // Output of sets that only this item contributes to: transposed back, so that a lane holds neighbours of one row.
      const RowInfo& info = rows[n * 8 + lane_ / 4];
      const bool direct = info.q_row >= 0 && info.state == kDirect && !holds;
      if (__any_sync(kAllLanes, direct)) {
        T* to = static_cast<T*>(p_.out) + info.q_row * p_.out_row_stride +
                int64_t{head * p_.group_size + info.head_in_group} * p_.head_dim + lane_ % 4 * 2;
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t pair =
                ptx::TransposeMatrix(Pack<T>(out_[n][d][half * 2] * scale[0], out_[n][d][half * 2 + 1] * scale[1]));
            const int column = d * 16 + half * 8;
            if (direct && column < p_.head_dim) *reinterpret_cast<uint32_t*>(to + column) = pair;
          }
        }
      }
    }
  }

  // Asks for the states that the warp is to hold beside the task's own.
  __device__ void FetchStates(const StreamTask& task) {
    const int count = task.rows * (task.head_end - task.head_begin) * slot().task.shared_of_row;
    const int state = lane_ < count ? slot().shared_states[lane_] : kOwnState;
    const bool fetches = state != kOwnState;
    const int others = __popc(__ballot_sync(kAllLanes, fetches));
    if (lane_ == 0) ptx::BarrierArriveExpectBytes(&s_.stream[worker_].shared_ready, others * C::kHeadDim * 4);
    __syncwarp();  // the barrier expects the bytes before any arrive
    if (!fetches) return;
    ptx::BulkLoad(shared_states().acc[lane_], p_.state_acc + int64_t{state} * C::kHeadDim, C::kHeadDim * 4,
                  &s_.stream[worker_].shared_ready, ptx::kEvictFirst);
    ptx::CopyAsync8(ptx::SharedAddress(&shared_states().ml[lane_]), p_.state_ml + state);
  }

  // Which of a row's states the lane's group of eight folds: all of them, or every fourth in a cooperative task, whose warps fold
  // one row at a time.
  __device__ __forceinline__ FoldRow StatesOf(const RowInfo& row) const {
    const int first = is_cooperative() ? lane_ / 8 : 0;
    return {.count = is_cooperative() ? (row.contribution_count + 3 - first) / 4 : row.contribution_count,
            .contribution_begin = row.contribution_begin + first,
            .row_in_set = row.row_in_set};
  }
  __device__ __forceinline__ int state_stride() const { return is_cooperative() ? 4 : 1; }

  // Draws the tickets of all sets and heads of the task at once, and folds what is complete.
  __device__ void Complete(const StreamTask& task) {
    const RowInfo* rows = slot().rows;
    const int shift = task.rows <= 1 ? 0 : 32 - __clz(task.rows - 1);  // rows padded to a power of two
    const int row_mask = (1 << shift) - 1, heads = 32 >> shift;
    // The first fold's loads, under the latency of the tickets; most tasks hold rows of one set, and it serves all folds.
    const RowInfo& early = rows[(is_cooperative() ? worker_ : lane_ / 8) & row_mask];
    const int early_set = early.set;  // -1 where there is no such row
    const LoadedContribution early_contribution = ContributionOf(p_, StatesOf(early), 0, state_stride());
    StressDelay<C>();
    __syncwarp();  // all states of the warp are stored
    const RowInfo info = rows[lane_ & row_mask];
    const bool waits = info.q_row >= 0 && info.state != kDirect;
    if (!__any_sync(kAllLanes, waits)) return;
    for (int base = task.head_begin; base < task.head_end; base += heads) {
      const int head = base + (lane_ >> shift);
      const bool draws = waits && head < task.head_end && info.rows_from_draw == 0;
      const unsigned complete = __ballot_sync(kAllLanes, draws && ArriveLast(p_, info.ticket, head, info.arrivals));
      const unsigned folds =
          __ballot_sync(kAllLanes, waits && head < task.head_end && (complete >> (lane_ - info.rows_from_draw & 31) & 1) != 0);
#pragma unroll 1
      for (unsigned left = folds; left != 0;) {  // four (row, head) pairs at a time; a warp of a cooperative task one
        int pair = -1;
        for (int i = 0; i < (is_cooperative() ? 1 : 4) && left != 0; ++i, left &= left - 1) {
          if (is_cooperative() || lane_ / 8 == i) pair = __ffs(left) - 1;
        }
        const RowInfo& own = rows[max(pair, 0) & row_mask];
        const int fold_head = base + (max(pair, 0) >> shift);
        FoldRow fold = StatesOf(own);
        fold.q_row = own.q_row, fold.qo_head = fold_head * p_.group_size + own.head_in_group;
        if (pair < 0) fold.count = 0;
        const bool known = own.set == early_set;
        FoldRow unknown = fold;
        if (known) unknown.count = 0;  // and is not asked for again
        LoadedContribution contribution = ContributionOf(p_, unknown, 0, state_stride());
        if (known) contribution = early_contribution;
        auto folded = [&] {
          if constexpr (C::kDeterministic) {
            return FoldStatesInOrder<C::kHeadDim, kFoldAtOnce>(p_, fold, fold_head, contribution);
          } else {
            return FoldStates<C::kHeadDim, kFoldAtOnce>(p_, fold, fold_head, contribution, state_stride());
          }
        }();
        if (is_cooperative()) folded.CombineWarp();
        if (is_cooperative() ? lane_ < 8 : fold.count > 0) StoreFoldedRow<T>(p_, fold, folded.m, folded.l, folded.acc);
      }
    }
  }

  // Folds the states that the warp holds. No other task of the set is left.
  __device__ void FoldShared(const StreamTask& task) {
    const RowInfo* rows = slot().rows;
    const int lane = ptx::Here(lane_);
    ptx::BarrierWait(&s_.stream[worker_].shared_ready, slot().task.shared_phase);
    ptx::CopyAsyncWaitAll();
    __syncwarp();  // what all lanes fetched has come, what all lanes added is written
    const int count = slot().task.shared_of_row, pairs = task.rows * (task.head_end - task.head_begin);  // (row, kv head)
#pragma unroll 1
    for (int pair = lane / 8; pair < pairs; pair += 4) {  // eight lanes a pair
      const int head = SmallQuotient(pair, task.rows);
      const RowInfo& info = rows[pair - head * task.rows];
      const FoldRow fold{
          .count = count, .q_row = info.q_row, .qo_head = (task.head_begin + head) * p_.group_size + info.head_in_group};
      FoldRowInShared<T, C::kHeadDim>(p_, fold, shared_states().acc[pair * count], shared_states().ml + pair * count);
    }
    ptx::FenceProxyAsync();  // these accesses before the copy engine's next ones
  }

  __device__ __forceinline__ void AwaitCta() const { ptx::NamedBarrierSync(kCooperativeBarrier, C::kStreamWarps * 32); }

  // The states that the CTA's warps have of each row become the row's output, or one state. Each warp takes the rows `worker` and
  // `worker` + 8, sixteen lanes a row.
  __device__ void CombineCta(const StreamTask& task) {
    constexpr int kRowLanes = 16, kVectors = C::kHeadDim / 4 / kRowLanes;
    static_assert(C::kStreamWarps == 8 && 2 * C::kStreamWarps == kStreamRows && kSharedStates == kStreamRows);
    AwaitCta();  // all states are in shared memory
    const int lane = lane_ % kRowLanes, row = worker_ + lane_ / kRowLanes * C::kStreamWarps;
    const float2 ml = s_.shared_states[lane % 8].ml[row];
    const float m = MaxOfEight(ml.x), weight = StateWeight(ml.x, m);
    const float l = SumOfEight(weight * ml.y);
    float acc[kVectors][4] = {};
#pragma unroll
    for (int w = 0; w < C::kStreamWarps; ++w) {
      const float of_warp = __shfl_sync(kAllLanes, weight, w, 8);
      float4 v[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) v[i] = reinterpret_cast<const float4*>(s_.shared_states[w].acc[row])[lane + i * kRowLanes];
      AddState(of_warp, v, acc);
    }
    const RowInfo& info = slot().rows[row];
    if (row >= task.rows) {
      // Its place had a state of another task.
    } else if (info.state == kDirect) {
      const FoldRow direct{.q_row = info.q_row, .qo_head = task.head_begin * p_.group_size + info.head_in_group};
      StoreFoldedRow<T, kRowLanes>(p_, direct, m, l, acc);
    } else {
      const int64_t state = info.state + int64_t{task.head_begin} * info.head_stride;
      if (lane == 0) StoredArrays(p_).ml[state] = {m, l};
      float4* const to = reinterpret_cast<float4*>(StoredArrays(p_).acc + state * C::kHeadDim) + lane;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) to[i * kRowLanes] = {acc[i][0], acc[i][1], acc[i][2], acc[i][3]};
    }
    __syncwarp();
  }

  const ParamsOf<C>& p_;
  const KvMaps maps_;
  SharedStorage<C>& s_;
  const int worker_;
  const bool tree_mask_;
  const int lane_ = threadIdx.x % 32;

  const int stride_;    // tokens from a step of the warp to its next
  int steps_to_claim_;  // that take room in the L2 as usual before KV that is read once is marked to leave first

  // This head's rows: Q^T, the output so far and its softmax.
  uint32_t q_[2][kDepth][2];
  float out_[2][kDepth][4];
  float row_max_[2][2], row_sum_[2][2];

  static constexpr int kWantTokens = 2 * kTokens;
  int wanted_ = 1, fetched_ = 0, current_ = 0;  // tasks; the first is wanted from the start
  int in_ring_ = 0;                             // steps
  bool load_once_ = false;                      // no other task reads the KV of the cursor's
  int slot_ = 0, load_slot_ = 0;                // places of the ring
  uint32_t parity_ = 0;
  int load_first_ = 0, load_position_ = 0, load_end_ = 0, load_head_ = 0, load_head_end_ = 0, load_page_begin_ = 0;
  // The page of the row pages_from_ + lane, or, where tokens are gathered, of the lane's token of the cursor's step.
  int pages_ = 0, pages_from_ = -kPagesHeld;
};

}  // namespace coppice::attention::cuda
