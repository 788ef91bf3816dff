// KV of pages of fewer than eight tokens, in the layout of the tiles. Eight tokens whose pages lie one after the other, as
// allocators give a prompt's, are one box of the bulk tensor copy engine. Else lanes copy the tokens, 16 bytes a lane: the engine
// takes one box of a token's 128 bytes after the other, and a dense step of 64 KB would be 512 of them. Layer: attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/load.cuh"

namespace coppice::attention::cuda {

// The page of the row that begins at page_begin which has kv index `token`.
__device__ __forceinline__ int PageOf(const KernelParams& p, int page_begin, int token) {
  return __ldg(p.page_indices + page_begin + (token >> p.page_shift));
}

// Whether the page of the lane's token lies where it must, if the pages of its eight tokens lie one after the other. All lanes
// call.
__device__ __forceinline__ bool IsInBox(const KernelParams& p, int page) {
  const int lane = threadIdx.x % 32;
  return page == __shfl_sync(kAllLanes, page, lane / 8 * 8) + (lane % 8 >> p.page_shift);
}

// 32 tokens from a multiple of eight on, as the lanes of a warp know them.
struct TokenBlock {
  int page;       // of the lane's token, if that is present
  int position;   // kv index of the first token
  int present;    // those before the end of the range
  bool in_boxes;  // eight by eight, the pages of those present lie one after the other

  // All lanes call.
  __device__ __forceinline__ TokenBlock(const KernelParams& p, int page, int position, int end)
      : page(page), position(position), present(min(32, end - position)) {
    const bool in_box = IsInBox(p, page);
    in_boxes = __all_sync(kAllLanes, static_cast<int>(threadIdx.x % 32) >= present || in_box);
  }
};

// Starts the copies of as many times eight tokens, a box a lane, whose pages begin at the lane's `page`. All lanes call.
template <class C>
__device__ __forceinline__ void CopyBoxes(const GatherParams& p, const CUtensorMap* map, int head, int boxes, int page,
                                          uint64_t* ready, uint8_t* to, uint64_t priority) {
  const int lane = ptx::Here(threadIdx.x % 32);
  if (lane == 0) ptx::BarrierExpectBytes(ready, boxes * C::kGroupBytes);
  __syncwarp();  // the barrier expects the bytes before any arrive
  if (lane >= boxes) return;
  to += lane * C::kGroupBytes;
  const int copies = p.split_boxes ? C::kHeadChunks : 1, head_fourth = p.split_boxes ? head : 0;
#pragma unroll 1
  for (int chunk = 0; chunk < copies; ++chunk) {
    ptx::TensorLoad5(to + chunk * 1024, map, ready, chunk * 64, 0, page, head_fourth, head - head_fourth, priority);
  }
}

// Copies of 32 tokens' K or V under one kv head by the lanes of a warp, 16 bytes a lane, to `to`: [8 tokens][chunk][8][64],
// swizzled. CopyAsyncArrive follows. All lanes make one.
template <class C>
class LaneCopies {
 public:
  __device__ __forceinline__ LaneCopies(const GatherParams& p, const uint8_t* kv, int head, uint8_t* to)
      : exists_(Piece() * 8 < p.head_dim), from_(kv + (head * p.head_stride + (exists_ ? Piece() : 0)) * 16) {
    ptx::Pin(from_);
#pragma unroll
    for (int i = 0; i < kSwizzles; ++i) {
      const int token = i * kAtOnce + Place();
      to_[i] = ptx::Here(ptx::SharedAddress(to) + Piece() / 8 * 1024 + token * 128 + ((Piece() % 8) ^ token) * 16);
    }
  }

  // offset: of the lane's token, in 16 bytes from the first page's slot 0. priority: in the L2, if not the normal one, which would
  // cost registers. All lanes call.
  template <class... Priority>
  __device__ __forceinline__ void Copy(uint32_t offset, Priority... priority) {
    // Each lane takes one of the tokens that it copies: the lanes that it asks for the others are constants then.
    offset = __shfl_sync(kAllLanes, offset, Piece() * kAtOnce + Place());
#pragma unroll
    for (int first = 0; first < kPieces; first += kBatch) {
      const uint8_t* token[kBatch];  // one register for all would wait until the copy before it has read it
#pragma unroll
      for (int i = 0; i < kBatch; ++i) token[i] = from_ + uint64_t{__shfl_sync(kAllLanes, offset, first + i, kPieces)} * 16;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        ptx::CopyAsync16(to_[i % kSwizzles] + (first + i) / kSwizzles * C::kGroupBytes, token[i], exists_ ? 16 : 0, priority...);
      }
    }
  }
  // The next copies go behind those.
  __device__ __forceinline__ void Advance() {
#pragma unroll
    for (uint32_t& to : to_) to += 4 * C::kGroupBytes;
  }

 private:
  static constexpr int kPieces = C::kHeadDim / 8, kAtOnce = 32 / kPieces;  // of a token; tokens
  static constexpr int kSwizzles = 8 / kAtOnce;                            // places in eight tokens that a lane's copies have
  static constexpr int kBatch = 8;                                         // copies
  static __device__ __forceinline__ int Piece() { return ptx::Here(threadIdx.x % 32) % kPieces; }
  static __device__ __forceinline__ int Place() { return ptx::Here(threadIdx.x % 32) / kPieces; }

  bool exists_;
  const uint8_t* from_;
  uint32_t to_[kSwizzles];
};

// Starts the copies of a block's K or V under one kv head to `to`. Data of the copy engine completes bytes on `ready`; for the
// rest, CopyAsyncArrive follows. All lanes call. REQUIRES: a token is present.
template <class C>
__device__ __forceinline__ void CopyTokens(const GatherParams& p, const CUtensorMap* map, const uint8_t* kv, int head,
                                           const TokenBlock& block, uint64_t* ready, uint8_t* to, uint64_t priority) {
  const int lane = ptx::Here(threadIdx.x % 32);
  if (block.in_boxes) {
    // A box may read past the end: pages that do not exist are out of the map's bounds, and what others hold is not seen.
    const int boxes = (block.present + 7) / 8;
    const int page = __shfl_sync(kAllLanes, block.page, lane * 8 % 32);
    CopyBoxes<C>(p, map, head, boxes, page, ready, to, priority);
    return;
  }
  // Behind the end lie copies of the block's first page.
  const int first = __shfl_sync(kAllLanes, block.page, 0);
  const uint32_t slot = (block.position + lane) & (p.page_size - 1);
  LaneCopies<C>(p, kv, head, to).Copy((lane < block.present ? block.page : first) * p.page_stride + slot * p.slot_stride, priority);
}

// The pages of a dense tile's tokens, as the lanes of a warp know them: of token b * 32 + lane, if that is present.
template <class C>
struct TilePages {
  static constexpr int kBlocks = C::kKvTile / 32;
  int pages[kBlocks];

  // Of the tile from `start` on.
  __device__ __forceinline__ void LookUp(const KernelParams& p, const DenseTask& t, int start) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) pages[b] = PageOf(p, t.page_begin, min(start + b * 32 + lane, t.range.end - 1));
  }

  // Whether the pages of each eight tokens that are present lie one after the other. All lanes call.
  __device__ __forceinline__ bool InBoxes(const KernelParams& p, int present) const {
    const int lane = threadIdx.x % 32;
    bool in_boxes = true;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const bool in_box = IsInBox(p, pages[b]);
      in_boxes &= b * 32 + lane >= present || in_box;
    }
    return __all_sync(kAllLanes, in_boxes);
  }

  // Starts the copies of the tile's K or V, a box of eight tokens a lane, all at once: 32 tokens after the other would take the
  // time in which the tile before is computed. REQUIRES: InBoxes. All lanes call.
  __device__ __forceinline__ void CopyBoxes(const GatherParams& p, const CUtensorMap* map, int head, int present, uint64_t* ready,
                                            uint8_t* to) const {
    const int lane = threadIdx.x % 32, boxes = (min(present, C::kKvTile) + 7) / 8;
    int page = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int of_block = __shfl_sync(kAllLanes, pages[b], lane * 8 % 32);
      page = lane / 4 == b ? of_block : page;
    }
    cuda::CopyBoxes<C>(p, map, head, boxes, page, ready, to, ptx::kEvictNormal);
  }

  // The same by lanes; CopyAsyncArrive follows. Tokens of the last block behind the end are of its last page. The pages are used
  // up. All lanes call.
  __device__ __forceinline__ void CopyTokens(const GatherParams& p, const uint8_t* kv, int head, int start, int present,
                                             uint8_t* to) {
    const uint32_t slot = (start + ptx::Here(threadIdx.x % 32)) & (p.page_size - 1);  // in every block: they are of whole pages
    LaneCopies<C> copies(p, kv, head, to);
#pragma unroll 1
    for (int left = min(present, C::kKvTile); left > 0; left -= 32) {
      copies.Copy(pages[0] * p.page_stride + slot * p.slot_stride);
      copies.Advance();
#pragma unroll
      for (int b = 1; b < kBlocks; ++b) pages[b - 1] = pages[b];
    }
  }
};

// One warp: K or V of the tiles of the dense tasks, as LoadDenseKv.
template <class C>
__device__ void GatherDenseKv(const GatherParams& p, KvMaps maps, SharedStorage<C>& s, bool is_v) {
  const int lane = threadIdx.x % 32;
  int tile = 0;  // over all tasks
  for (int n = 0;; ++n) {
    const DenseTask t = TakeDenseTask(s, n);
    if (t.num_tiles < 0) break;
    TilePages<C> next;
    if (t.num_tiles > 0) next.LookUp(p, t, t.first);
    for (int i = 0; i < t.num_tiles; ++i, ++tile) {
      const int stage = tile % C::kStages, start = t.first + i * C::kKvTile, present = t.range.end - start;
      uint64_t* const ready = is_v ? &s.v_ready[stage] : &s.k_ready[stage];
      uint8_t* const to = is_v ? s.v[stage] : s.k[stage];
      TilePages<C> of = next;
      if (i + 1 < t.num_tiles) next.LookUp(p, t, start + C::kKvTile);  // ahead of the copies, which it would wait behind
      const bool in_boxes = of.InBoxes(p, present);
      ptx::BarrierWait(is_v ? &s.v_free[stage] : &s.k_free[stage], (tile / C::kStages & 1) ^ 1);
      if (in_boxes) {
        of.CopyBoxes(p, is_v ? maps.v : maps.k, t.kv_head, present, ready, to);
      } else {
        of.CopyTokens(p, is_v ? p.v : p.k, t.kv_head, start, present, to);
      }
      ptx::CopyAsyncArrive(ready);
    }
  }
}

}  // namespace coppice::attention::cuda
