// Ranks on GPUs of one process. Where these read each other's memory, sums, gathers and broadcasts are kernels of ours in the
// ranks' streams. Layer: ops. cuda/peer_group.cc and cuda/nccl_group.cc implement it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "coppice/core/status.h"
#include "core/communicator.h"
#include "core/device_tensor.h"
#include "ops/ops.h"

namespace coppice::ops {

// The most ranks of a group.
inline constexpr int kMostPeers = 8;

// A rank of MakePeerGroup: its sums go with what follows them in one pass.
class PeerRank : public Communicator {
 public:
  // x, [rows, cols] f32, += the sum over ranks of `terms`, in f32 and in the order of the ranks; normed = norm(x). Without memory
  // of `normed`, which then has a dtype alone, there is no norm. REQUIRES: TakesAddNorm, which says the same for any number of
  // rows.
  virtual Status AddNorm(ConstDeviceTensor terms, DeviceTensor x, const NormArgs& norm, DeviceTensor normed, Stream stream) = 0;
  // Columns in fours, all aligned to them; `terms` of the dtype of `normed`, bf16 or f16, or f32.
  virtual bool TakesAddNorm(ConstDeviceTensor terms, DeviceTensor x, const NormArgs& norm, DeviceTensor normed) const = 0;
};

// Ranks, each a PeerRank, on the CUDA devices of these ordinals; one may be named twice. Calls may be captured into graphs, where
// each rank captures its own. A rank that the others wait for in vain ends their waits after 8 seconds
// (CommunicatorGroup::CheckDone, UNAVAILABLE). `max_bytes`: of a call at a time; larger ones take several. UNAVAILABLE: CUDA is not
// built, or two of the devices cannot read each other's memory; INVALID_ARGUMENT: more ranks than kMostPeers.
Result<std::unique_ptr<CommunicatorGroup>> MakePeerGroup(std::span<const int> ordinals, int64_t max_bytes);

// The same by way of NCCL, whatever links the devices; all are different. The order of a sum is the library's, and may differ from
// one number of rows to another. A rank that does not come is waited for. UNAVAILABLE: CUDA or NCCL is not there, or NCCL refuses.
Result<std::unique_ptr<CommunicatorGroup>> MakeNcclGroup(std::span<const int> ordinals, int64_t max_bytes);

}  // namespace coppice::ops
