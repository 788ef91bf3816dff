// Kernels by which ranks exchange values through each other's memory. All ranks launch the same ones in the same order, each in one
// stream. Layer: ops/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "ops/cuda/norm.h"
#include "ops/peer_group.h"

namespace coppice::ops::cuda {

inline constexpr int kMostPeerCtas = 2048;  // of a kernel

// How the CTAs of a number on all ranks meet. What is no array has this rank's values.
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

// The first rank's words become those of all. REQUIRES: 4 * count <= slot_bytes.
Status LaunchPeerBroadcast(uint32_t* words, int64_t count, const PeerInbox& inbox, const PeerMeeting& meeting, bool overlaps,
                           cudaStream_t stream);

// Loads all of them on the current device: a kernel that is loaded at its first launch may wait for those that run, of which one
// may wait for it.
Status LoadPeerKernels();

}  // namespace coppice::ops::cuda
