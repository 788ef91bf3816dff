// Stream tiles: at most 16 rows against a run of KV, bound by memory bandwidth. Each warp works alone: it draws its tasks, keeps its
// own ring of bulk copies full across items, and multiplies with KV as the tall operand (S^T = K Q^T, O^T = V^T P^T), so that one
// row costs eight columns of mma.sync instead of sixteen rows and the weights never leave registers.
// Bifurcated Attention section 4 and Hydragen section 3.1 call this the suffix part. Layer: attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/load.cuh"

namespace coppice::attention::cuda {

template <class C, int kSteps>
class StreamWorker {
  using T = typename C::Element;
  static constexpr int kTokens = C::kStreamTokens;
  static constexpr int kBlocks = kTokens / 16;      // token blocks (mma's M) of a step
  static constexpr int kDepth = C::kHeadDim / 16;   // mma's K steps of the scores, and M blocks of the output
  using Ring = uint8_t[2][C::kStreamUnitBytes];     // K, V of one step

 public:
  __device__ StreamWorker(const KernelParams& p, KvMaps maps, StreamState<kSteps>& state, Ring* ring, int num_tasks, bool tree_mask)
      : p_(p), maps_(maps), state_(state), ring_(ring), num_tasks_(num_tasks), tree_mask_(tree_mask) {
    if (lane_ == 0) {
      for (int i = 0; i < kSteps; ++i) {
        ptx::BarrierInit(&state_.k_ready[i], 1);
        ptx::BarrierInit(&state_.v_ready[i], 1);
      }
      ptx::FenceBarrierInit();
    }
    __syncwarp();
  }

  // first_task: the task to begin with, where all warps begin at the same moment; -1: drawn from the queue.
  __device__ void Run(int first_task) {
    claimed_ = first_task;
    drawn_from_ = first_task < 0 ? 0 : gridDim.x * C::kTailWarps;
    if (first_task < 0) Draw();
    for (; current_ < fetched_ || Fetch(); ++current_) {
      Fill();
      const StreamTask task = state_.tasks[current_ & 1];
      for (int head = task.head_begin; head < task.head_end; ++head) {
        if (task.rows <= 8) {
          Attend<1>(task, head);
        } else {
          Attend<2>(task, head);
        }
      }
      Complete(task);
      __syncwarp();  // the task's rows are read; its place may be filled again
    }
  }

 private:
  // ---- The loading side: a cursor that runs up to kSteps steps and one task ahead.

  __device__ void Draw() {
    if (lane_ == 0) claimed_ = drawn_from_ + atomicAdd(&p_.counters->stream_next, 1);
  }

  // Resolves the claimed task into the other place and draws one more. False when the queue is empty.
  __device__ bool Fetch() {
    if (exhausted_) return false;
    const int index = __shfl_sync(kAllLanes, claimed_, 0);
    if (index >= num_tasks_) {
      exhausted_ = true;
      return false;
    }
    Draw();
    const Task task = p_.stream_tasks[index];
    const DeviceItem& item = task.item;
    const int end = min(item.kv_end, p_.branches[item.branch].kv_len);
    const RowInfo info = ResolveRow(p_, task, lane_, tree_mask_);
    const bool exists = info.q_row >= 0;
    const int lo_min = __reduce_min_sync(kAllLanes, exists ? info.lo : INT32_MAX);
    const int lo_max = __reduce_max_sync(kAllLanes, exists ? info.lo : 0);
    const int hi_min = __reduce_min_sync(kAllLanes, exists ? (tree_mask_ ? info.hi - info.query_count : info.hi) : INT32_MAX);
    const int hi_max = __reduce_max_sync(kAllLanes, exists ? info.hi : 0);
    StreamTask t{};
    t.begin = item.masked ? max(item.kv_begin, lo_min) : item.kv_begin;
    t.end = item.masked ? min(end, hi_max) : end;
    t.full_begin = item.masked ? max(item.kv_begin, lo_max) : item.kv_begin;
    t.full_end = item.masked ? min(end, hi_min) : end;
    t.first = t.begin / kBoxTokens * kBoxTokens;
    t.page_begin = item.page_begin;
    t.head_begin = item.head_begin;
    t.head_end = item.head_begin + item.head_count;
    t.rows = item.rows;
    const int place = fetched_ & 1;
    if (lane_ < kStreamRows) state_.rows[place][lane_] = info;
    if (lane_ == 0) state_.tasks[place] = t;
    __syncwarp();
    ++fetched_;
    load_first_ = load_position_ = t.first;
    load_end_ = t.end > t.begin ? t.end : t.first;  // an empty range loads nothing
    load_head_ = t.head_begin;
    load_head_end_ = t.head_end;
    load_page_begin_ = t.page_begin;
    return true;
  }

  // Moves the cursor to the next step that exists. False if there is none within one task of the current one.
  __device__ bool FindStep() {
    while (load_position_ >= load_end_) {
      if (load_head_ + 1 < load_head_end_) {
        ++load_head_;
        load_position_ = load_first_;
        if (load_first_ >= load_end_) load_head_ = load_head_end_;
      } else if (fetched_ > current_ + 1 || !Fetch()) {
        return false;
      }
    }
    return true;
  }

  __device__ void Load(const CUtensorMap* map, uint64_t* ready, uint8_t* to, int position, int end, int head, int page_begin) {
    const int boxes = min(kTokens / p_.box_tokens, (end - position + p_.box_tokens - 1) / p_.box_tokens);
    if (lane_ == 0) ptx::BarrierArriveExpectBytes(ready, boxes * p_.box_tokens * C::kHeadDim * 2);
    __syncwarp();
    if (lane_ < boxes) {
      const int at = position + lane_ * p_.box_tokens;
      LoadBox(p_, map, ready, to + lane_ * p_.box_tokens / 8 * C::kGroupBytes, UnitOf(p_, page_begin, head, at), at, C::kHeadChunks,
              C::kGroupBytes);
    }
  }

  // Starts the K copies of the next step into the ring's next place, whose K must be free.
  __device__ bool LoadK() {
    if (!FindStep()) return false;
    const int place = k_loaded_ % kSteps;
    Load(maps_.k, &state_.k_ready[place], ring_[place][0], load_position_, load_end_, load_head_, load_page_begin_);
    v_position_ = load_position_, v_end_ = load_end_, v_head_ = load_head_, v_page_begin_ = load_page_begin_;
    load_position_ += kTokens;
    ++k_loaded_;
    return true;
  }
  // The V copies of the step whose K was loaded last.
  __device__ void LoadV() {
    const int place = v_loaded_ % kSteps;
    Load(maps_.v, &state_.v_ready[place], ring_[place][1], v_position_, v_end_, v_head_, v_page_begin_);
    ++v_loaded_;
  }
  __device__ void Fill() {
    if (v_loaded_ < k_loaded_) LoadV();
    while (k_loaded_ < done_ + kSteps && LoadK()) LoadV();
  }

  // ---- The computing side.

  // Shared-memory address of the 16-byte piece `piece` of `token` in a unit: [8 tokens][chunk][8][64], swizzled.
  static __device__ __forceinline__ uint32_t Piece(uint32_t unit, int token, int piece) {
    return unit + token / 8 * C::kGroupBytes + piece / 8 * 1024 + token % 8 * 128 + ((piece % 8) ^ (token % 8)) * 16;
  }

  // All rows of the task under one kv head. kColumns: blocks of eight rows.
  template <int kColumns>
  __device__ void Attend(const StreamTask& task, int head) {
    const RowInfo* rows = state_.rows[current_ & 1];
    uint32_t q[kColumns][kDepth][2];
    LoadQ<kColumns>(rows, head, q);
    float out[kColumns][kDepth][4] = {};
    float row_max[kColumns][2], row_sum[kColumns][2] = {};
#pragma unroll
    for (int n = 0; n < kColumns; ++n) row_max[n][0] = row_max[n][1] = -INFINITY;

    const int end = task.end > task.begin ? task.end : task.first;
    for (int position = task.first; position < end; position += kTokens) {
      const int place = done_ % kSteps;
      const uint32_t parity = done_ / kSteps & 1;
      float scores[kBlocks][kColumns][4] = {};
      const uint32_t k = ptx::SharedAddress(ring_[place][0]);
      ptx::BarrierWait(&state_.k_ready[place], parity);
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          uint32_t a[4];
          ptx::LoadMatrix4(a, Piece(k, b * 16 + lane_ % 16, d * 2 + lane_ / 16));
#pragma unroll
          for (int n = 0; n < kColumns; ++n) ptx::MmaM16N8K16<T>(scores[b][n], a, q[n][d][0], q[n][d][1]);
        }
      }
      __syncwarp();  // K is read by all lanes: its place is free
      if (v_loaded_ == k_loaded_ && k_loaded_ < done_ + 1 + kSteps) LoadK();

      if (p_.cap_in > 0.0f) {
#pragma unroll
        for (int i = 0; i < kBlocks * kColumns * 4; ++i) {
          float& x = scores[i / (kColumns * 4)][i / 4 % kColumns][i % 4];
          x = tanhf(x * p_.cap_in);
        }
      }
      if (position < task.full_begin || position + kTokens > task.full_end) Mask<kColumns>(task, rows, position, scores);

      uint32_t weights[kBlocks][kColumns][2];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        float rescale[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) Softmax<kColumns>(scores, n, c, row_max[n][c], row_sum[n][c], rescale[c]);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          weights[b][n][0] = ptx::TransposeMatrix(Pack<T>(scores[b][n][0], scores[b][n][1]));
          weights[b][n][1] = ptx::TransposeMatrix(Pack<T>(scores[b][n][2], scores[b][n][3]));
        }
        if (__any_sync(kAllLanes, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
          for (int d = 0; d < kDepth; ++d) {
#pragma unroll
            for (int i = 0; i < 4; ++i) out[n][d][i] *= rescale[i % 2];
          }
        }
      }

      ptx::BarrierWait(&state_.v_ready[place], parity);
      if (position + kTokens > task.end) ClearTail(ring_[place][1], task.end - position);
      const uint32_t v = ptx::SharedAddress(ring_[place][1]);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
          uint32_t a[4];
          ptx::LoadMatrix4Transposed(a, Piece(v, b * 16 + lane_ / 16 * 8 + lane_ % 8, d * 2 + lane_ / 8 % 2));
#pragma unroll
          for (int n = 0; n < kColumns; ++n) ptx::MmaM16N8K16<T>(out[n][d], a, weights[b][n][0], weights[b][n][1]);
        }
      }
      __syncwarp();  // V is read by all lanes: its place is free
      ++done_;
      Fill();
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int d = 4; d < 32; d *= 2) row_sum[n][c] += __shfl_xor_sync(kAllLanes, row_sum[n][c], d);
      }
    }
    Finish<kColumns>(rows, head, out, row_max, row_sum);
  }

  // Q^T as mma's B operand, straight from global memory: lane / 4 is the row, lane % 4 the pair of elements.
  template <int kColumns>
  __device__ void LoadQ(const RowInfo* rows, int head, uint32_t (&q)[kColumns][kDepth][2]) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const RowInfo& info = rows[n * 8 + lane_ / 4];
      const bool exists = info.q_row >= 0;
      const T* from = static_cast<const T*>(p_.q) + info.q_row * p_.q_row_stride +
                      int64_t{head * p_.group_size + info.head_in_group} * p_.head_dim + lane_ % 4 * 2;
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = d * 16 + half * 8;
          q[n][d][half] = exists && column < p_.head_dim ? __ldg(reinterpret_cast<const uint32_t*>(from + column)) : 0;
        }
      }
    }
  }

  // scores[b][n]: tokens b * 16 + lane / 4 (+ 8 for elements 2, 3), rows n * 8 + lane % 4 * 2 (+ 1 for elements 1, 3).
  template <int kColumns>
  __device__ void Mask(const StreamTask& task, const RowInfo* rows, int position, float (&scores)[kBlocks][kColumns][4]) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const RowInfo& info = rows[n * 8 + lane_ % 4 * 2 + c];
#pragma unroll
        for (int i = 0; i < 2 * kBlocks; ++i) {
          const int kv_index = position + lane_ / 4 + i * 8;
          const bool sees = kv_index >= task.begin && kv_index < task.end && Sees(p_, info, kv_index, tree_mask_);
          if (!sees) scores[i / 2][n][i % 2 * 2 + c] = -INFINITY;
        }
      }
    }
  }

  // One step of the running softmax (FlashAttention, algorithm 1, base 2) for the row that elements c and c + 2 belong to.
  template <int kColumns>
  __device__ void Softmax(float (&scores)[kBlocks][kColumns][4], int n, int c, float& row_max, float& row_sum, float& rescale) {
    float m = row_max;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) m = fmaxf(m, fmaxf(scores[b][n][c], scores[b][n][c + 2]));
#pragma unroll
    for (int d = 4; d < 32; d *= 2) m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, d));
    const float base = m == -INFINITY ? 0.0f : m * p_.score_scale_log2;
    rescale = m == row_max ? 1.0f : ptx::Exp2(row_max * p_.score_scale_log2 - base);
    row_sum *= rescale;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = c; i < 4; i += 2) {
        scores[b][n][i] = ptx::Exp2(scores[b][n][i] * p_.score_scale_log2 - base);
        row_sum += scores[b][n][i];
      }
    }
    row_max = m;
  }

  // V rows past the end may hold NaN, which no weight of zero removes.
  __device__ void ClearTail(uint8_t* v, int present) {
    constexpr int kPieces = C::kHeadDim / 8;
    for (int i = max(present, 0) * kPieces + lane_; i < kTokens * kPieces; i += 32) {
      const int token = i / kPieces, piece = i % kPieces;
      *reinterpret_cast<uint4*>(v + token / 8 * C::kGroupBytes + piece / 8 * 1024 + token % 8 * 128 + piece % 8 * 16) = uint4{};
    }
    ptx::FenceProxyAsync();  // these writes before the copy engine's next ones
    __syncwarp();
  }

  // Stores states or output. out[n][d]: elements d * 16 + lane / 4 (+ 8 for registers
  // 2, 3) of rows n * 8 + lane % 4 * 2 (+ 1 for registers 1, 3).
  template <int kColumns>
  __device__ void Finish(const RowInfo* rows, int head, float (&out)[kColumns][kDepth][4], const float (&row_max)[kColumns][2],
                         const float (&row_sum)[kColumns][2]) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      float scale[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const RowInfo& info = rows[n * 8 + lane_ % 4 * 2 + c];
        const float sum = row_sum[n][c], m = sum > 0.0f ? row_max[n][c] * p_.score_scale_log2 : -INFINITY;
        scale[c] = sum > 0.0f ? p_.value_scale / sum : 0.0f;
        if (info.q_row < 0) continue;
        if (info.state == kDirect) {
          const int qo_head = head * p_.group_size + info.head_in_group;
          if (p_.lse != nullptr && lane_ < 4) p_.lse[int64_t{info.q_row} * p_.num_kv_heads * p_.group_size + qo_head] = NaturalLse(m, sum);
        } else {
          const int64_t at = info.state + int64_t{head} * info.head_stride;
          if (lane_ < 4) __stcg(reinterpret_cast<float2*>(p_.state_ml) + at, float2{m, sum});
          float* to = p_.state_acc + at * C::kHeadDim + lane_ / 4;
#pragma unroll
          for (int d = 0; d < kDepth; ++d) {
            __stcg(to + d * 16, out[n][d][c]);
            __stcg(to + d * 16 + 8, out[n][d][c + 2]);
          }
        }
      }
      // Output of sets that only this item contributes to: transposed back, so that a lane holds neighbours of one row.
      const RowInfo& info = rows[n * 8 + lane_ / 4];
      const bool direct = info.q_row >= 0 && info.state == kDirect;
      if (__any_sync(kAllLanes, direct)) {
        T* to = static_cast<T*>(p_.out) + info.q_row * p_.out_row_stride +
                int64_t{head * p_.group_size + info.head_in_group} * p_.head_dim + lane_ % 4 * 2;
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t pair =
                ptx::TransposeMatrix(Pack<T>(out[n][d][half * 2] * scale[0], out[n][d][half * 2 + 1] * scale[1]));
            const int column = d * 16 + half * 8;
            if (direct && column < p_.head_dim) *reinterpret_cast<uint32_t*>(to + column) = pair;
          }
        }
      }
    }
  }

  // Draws the tickets of all sets and heads of the task at once, and folds what is complete.
  __device__ void Complete(const StreamTask& task) {
    const RowInfo* rows = state_.rows[current_ & 1];
    const int stride = task.rows <= 1 ? 1 : 1 << (32 - __clz(task.rows - 1));  // rows padded to a power of two
    const int row = lane_ % stride, heads = 32 / stride;
    __syncwarp();  // all states of the warp are stored
    const RowInfo info = rows[row];
    const bool waits = info.q_row >= 0 && info.state != kDirect;
    if (!__any_sync(kAllLanes, waits)) return;
    for (int base = task.head_begin; base < task.head_end; base += heads) {
      const int head = base + lane_ / stride;
      const bool draws = waits && head < task.head_end && info.row_in_set == 0;
      const unsigned complete = __ballot_sync(kAllLanes, draws && ArriveLast(p_, info.set, head, info.arrivals));
      if (complete == 0) continue;
      const bool fold = waits && head < task.head_end && (complete >> (lane_ - info.row_in_set) & 1) != 0;
      FoldRows<T, C::kHeadDim>(p_, fold ? info.set : -1, info.row_in_set, head);
    }
  }

  const KernelParams& p_;
  const KvMaps maps_;
  StreamState<kSteps>& state_;
  Ring* const ring_;
  const int num_tasks_;
  const bool tree_mask_;
  const int lane_ = threadIdx.x % 32;

  int drawn_from_ = 0;  // tasks that are not drawn
  int claimed_ = 0;     // lane 0: the task to fetch next
  bool exhausted_ = false;
  int fetched_ = 0, current_ = 0;                // tasks
  int k_loaded_ = 0, v_loaded_ = 0, done_ = 0;  // steps
  int load_first_ = 0, load_position_ = 0, load_end_ = 0, load_head_ = 0, load_head_end_ = 0, load_page_begin_ = 0;
  int v_position_ = 0, v_end_ = 0, v_head_ = 0, v_page_begin_ = 0;
};

}  // namespace coppice::attention::cuda
