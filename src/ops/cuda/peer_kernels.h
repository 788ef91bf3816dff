// Kernels by which ranks exchange values through each other's memory. All ranks launch the same ones in the same order, each in one
// stream. Layer: ops/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "core/communicator.h"
#include "core/device_tensor.h"
#include "ops/cuda/norm.h"
#include "ops/peer_group.h"

namespace coppice::ops::cuda {

inline constexpr int kMostPeerCtas = 2048;  // of a kernel

// How the CTAs of a number on all ranks meet. Fields that are no arrays have this rank's values.
struct PeerMeeting {
  uint32_t* arrived[kMostPeers] = {};  // of each rank: [kMostPeerCtas][kMostPeers], the epoch that a rank's CTA has reached
  uint32_t* epochs = nullptr;          // [kMostPeerCtas], of the CTA's last meeting; the same for all CTAs between kernels
  volatile uint32_t* failed =
      nullptr;  // of the group, in host memory: 0, or 1 + a rank that was waited for in vain, which ends waits
  int rank = 0, ranks = 1;
};

// Memory of each rank that the others write: two halves, which kernels use in turn, of a slot for each rank. A rank that has ended
// a kernel knows that the others have begun it, so none of them still reads what the kernel before the last one was sent.
struct PeerInbox {
  std::byte* base[kMostPeers] = {};
  int64_t slot_bytes = 0;
  std::byte* few[kMostPeers] = {};  // for few rows, of slots of kFewSlotBytes, which nothing else is written to
};
inline constexpr int kMostFewRows = 32;
inline constexpr int64_t kFewSlotBytes = int64_t{1} << 19;

// x, [count] f32, becomes the sum over ranks in their order, which is the same bits on all. REQUIRES: 4 * count <= slot_bytes.
Status LaunchPeerAllReduce(float* x, int64_t count, const PeerInbox& inbox, const PeerMeeting& meeting, bool overlaps,
                           cudaStream_t stream);

// x += the sum over ranks of their terms, in their order; y = norm(x), unless norm.y is null. norm.x is x, without rows; norm.y's
// dtype is that of the terms or, where these are f32, `y_dtype`. REQUIRES: TakesPeerAddNorm; the rows' terms fit into a slot.
struct PeerTerms {
  const void* terms = nullptr;
  int64_t stride = 0;  // in elements
  DType dtype = DType::kBF16;
};
bool TakesPeerAddNorm(const PeerTerms& terms, const NormParams& norm, DType y_dtype);
Status LaunchPeerAddNorm(const PeerTerms& terms, float* x, const NormParams& norm, DType y_dtype, int64_t rows,
                         const PeerInbox& inbox, const PeerMeeting& meeting, bool overlaps, cudaStream_t stream);

// all[row][rank * part_cols + i] = part of that rank [row][i], f32; nothing is written where `all` is null. A rank's part may be
// written again by what follows in its stream.
struct PeerGather {
  const float* part[kMostPeers] = {};
  int64_t rows = 0, part_cols = 0, part_stride = 0;
  float* all = nullptr;
  int64_t all_cols = 0, all_stride = 0;
};
Status LaunchPeerAllGather(const PeerGather& gather, const PeerMeeting& meeting, bool overlaps, cudaStream_t stream);

// all[row][rank * cols + i] = part of that rank [row][i], on all ranks, through the inboxes: one meeting where LaunchPeerAllGather
// has two. In words of 16 bytes. REQUIRES: 16 * rows * cols <= slot_bytes.
struct PeerShare {
  const uint4* part = nullptr;
  uint4* all = nullptr;
  int64_t part_stride = 0, all_stride = 0;
  int32_t cols = 0;  // of a part
};
Status LaunchPeerShare(const PeerShare& share, int64_t rows, const PeerInbox& inbox, const PeerMeeting& meeting, bool overlaps,
                       cudaStream_t stream);

// Attention of this rank's heads, of the states that `count` ranks from `first` on have of them. merged[row] = the merge, in the
// order of those ranks, of what each has at out[row][(m.rank - first) * cols ..], heads of head_dim elements, weighed by
// lse[row][(m.rank - first) * heads ..]. Of this rank; rows are the same on all. REQUIRES: head_dim is a multiple of 8, rows of
// `out` and `merged` begin at multiples of 16 bytes, and StateRowBytes of all rows fit into a slot.
struct PeerStates {
  const void* out = nullptr;
  const float* lse = nullptr;
  void* merged = nullptr;
  int64_t out_stride = 0, lse_stride = 0, merged_stride = 0;  // in elements
  int32_t cols = 0, heads = 0;                                // of a rank
  int32_t first = 0, count = 1;
  DType dtype = DType::kBF16;  // of out and merged: kBF16 or kF16
};
inline PeerStates PeerStatesOf(const PartialStates& states, const DeviceTensor& merged) {
  return {.out = states.out.data,
          .lse = static_cast<const float*>(states.lse.data),
          .merged = merged.data,
          .out_stride = states.out.stride,
          .lse_stride = states.lse.stride,
          .merged_stride = merged.stride,
          .cols = static_cast<int32_t>(merged.cols),
          .heads = static_cast<int32_t>(states.lse.cols / states.ranks.count),
          .first = states.ranks.first,
          .count = states.ranks.count,
          .dtype = merged.dtype};
}
int64_t StateRowBytes(const PeerStates& states);
Status LaunchPeerMergeStates(const PeerStates& states, int64_t rows, const PeerInbox& inbox, const PeerMeeting& meeting,
                             bool overlaps, cudaStream_t stream);
// The same where the states of all of those ranks are on this device: those of rank first + i at out[i] and lse[i], this rank's
// heads alone.
struct GatheredStates {
  const void* out[kMostPeers] = {};
  const float* lse[kMostPeers] = {};
  int64_t out_stride[kMostPeers] = {}, lse_stride[kMostPeers] = {};
};
Status LaunchMergeGathered(const PeerStates& states, const GatheredStates& gathered, int64_t rows, bool overlaps,
                           cudaStream_t stream);

// The first rank's words become those of all. REQUIRES: 4 * count <= slot_bytes.
Status LaunchPeerBroadcast(uint32_t* words, int64_t count, const PeerInbox& inbox, const PeerMeeting& meeting, bool overlaps,
                           cudaStream_t stream);

// Loads all of them on the current device: a kernel that is loaded at its first launch may wait for those that run, of which one
// may wait for it.
Status LoadPeerKernels();

}  // namespace coppice::ops::cuda
