#include "ops/peer_group.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/cuda/cuda_status.h"
#include "core/device.h"
#include "core/math.h"
#include "ops/cuda/peer_kernels.h"

namespace coppice::ops {
namespace {

using coppice::cuda::CudaStatus;
using coppice::cuda::DeviceGuard;

std::string CudaName(int ordinal) { return "cuda:" + std::to_string(ordinal); }

// Kernels on the current device, which is `from`, read the memory of `to`.
Status EnableAccess(int from, int to) {
  if (from == to) return OkStatus();
  int can = 0;
  COPPICE_RETURN_IF_ERROR(CudaStatus(cudaDeviceCanAccessPeer(&can, from, to), "cudaDeviceCanAccessPeer"));
  if (can == 0) {
    return Unavailable(CudaName(from) + " cannot read the memory of " + CudaName(to) +
                       ": ranks need GPUs that are linked (nvidia-smi topo -p2p r shows which are); name one GPU, or others");
  }
  const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
  if (error != cudaErrorPeerAccessAlreadyEnabled) return CudaStatus(error, "cudaDeviceEnablePeerAccess");
  cudaGetLastError();  // another group of this process did
  return OkStatus();
}

class PeerGroup final : public CommunicatorGroup {
 public:
  static Result<std::unique_ptr<CommunicatorGroup>> Create(std::span<const int> ordinals, int64_t max_bytes);

  std::unique_ptr<Communicator> MakeRank(int rank) override;
  void EnterThread(int rank) const override { cudaSetDevice(ordinals_[rank]); }
  Status CheckDone() const override {
    const uint32_t failed = *failed_word();
    if (failed == 0) return OkStatus();
    return Unavailable("rank " + std::to_string(failed - 1) + ", " + CudaName(ordinals_[failed - 1]) +
                       ", did not come to where the others waited for it");
  }

 private:
  friend class PeerCommunicator;
  struct Rank {
    std::unique_ptr<Device> device;  // before its memory
    DeviceMemory inbox, few, arrived, epochs;
    const void* shown = nullptr;  // to the others, between two barriers
  };

  explicit PeerGroup(std::span<const int> ordinals)
      : CommunicatorGroup(static_cast<int>(ordinals.size())),
        ordinals_(ordinals.begin(), ordinals.end()),
        ranks_(ordinals.size()) {}
  volatile uint32_t* failed_word() const { return failed_.As<volatile uint32_t>(); }
  cuda::PeerMeeting MeetingOf(int rank) const;
  cuda::PeerInbox Inbox() const;
  void OnReset() override;

  const std::vector<int> ordinals_;
  int64_t slot_bytes_ = 0;
  std::vector<Rank> ranks_;
  DeviceMemory failed_;
};

class PeerCommunicator final : public PeerRank {
 public:
  PeerCommunicator(PeerGroup* group, int rank)
      : group_(*group),
        rank_(rank),
        ordinal_(group->ordinals_[rank]),
        overlaps_(group->ranks_[rank].device->compute_capability() >= 90),
        inbox_(group->Inbox()),
        meeting_(group->MeetingOf(rank)) {}

  int rank() const override { return rank_; }
  int size() const override { return group_.size(); }
  Status Barrier() override { return group_.Barrier(); }

  Status AllReduce(DeviceTensor x, Stream stream) override {
    COPPICE_DCHECK(x.dtype == DType::kF32 && x.stride == x.cols);
    const DeviceGuard guard(ordinal_);
    const int64_t at_a_time = inbox_.slot_bytes / int64_t{sizeof(float)}, count = x.rows * x.cols;
    for (int64_t begin = 0; begin < count; begin += at_a_time) {
      COPPICE_RETURN_IF_ERROR(cuda::LaunchPeerAllReduce(static_cast<float*>(x.data) + begin, std::min(at_a_time, count - begin),
                                                        inbox_, meeting_, overlaps_, Of(stream)));
    }
    return OkStatus();
  }

  bool TakesAddNorm(ConstDeviceTensor terms, DeviceTensor x, const NormArgs& norm, DeviceTensor normed) const override {
    return terms.cols * static_cast<int64_t>(SizeOf(terms.dtype)) <= inbox_.slot_bytes &&
           cuda::TakesPeerAddNorm(TermsOf(terms), cuda::ParamsOf(x, norm, normed), normed.dtype);
  }

  Status AddNorm(ConstDeviceTensor terms, DeviceTensor x, const NormArgs& norm, DeviceTensor normed, Stream stream) override {
    COPPICE_DCHECK(TakesAddNorm(terms, x, norm, normed) && terms.rows == x.rows);
    const DeviceGuard guard(ordinal_);
    const int64_t at_a_time = inbox_.slot_bytes / (terms.cols * static_cast<int64_t>(SizeOf(terms.dtype)));
    for (int64_t begin = 0; begin < x.rows; begin += at_a_time) {
      const int64_t rows = std::min(at_a_time, x.rows - begin);
      const DeviceTensor x_rows = x.Rows(begin, rows), normed_rows = normed.data == nullptr ? normed : normed.Rows(begin, rows);
      COPPICE_RETURN_IF_ERROR(cuda::LaunchPeerAddNorm(TermsOf(terms.Rows(begin, rows)), static_cast<float*>(x_rows.data),
                                                      cuda::ParamsOf(x_rows, norm, normed_rows), normed.dtype, rows, inbox_,
                                                      meeting_, overlaps_, Of(stream)));
    }
    return OkStatus();
  }

  Status AllGather(ConstDeviceTensor part, DeviceTensor all, Stream stream) override {
    COPPICE_DCHECK(part.dtype == all.dtype && part.cols * size() == all.cols);
    const int64_t element = static_cast<int64_t>(SizeOf(part.dtype)), row_bytes = part.cols * element;
    const int64_t at_a_time = inbox_.slot_bytes / row_bytes;
    const auto in_words = [&](const auto& tensor, int64_t bytes) {
      return tensor.cols * element % bytes == 0 && tensor.stride * element % bytes == 0 &&
             reinterpret_cast<uintptr_t>(tensor.data) % bytes == 0;
    };
    constexpr int64_t kWord = sizeof(uint4);
    if (at_a_time == 0 || !in_words(part, kWord) || !in_words(all, kWord)) {
      const auto as_floats = [&](auto tensor) {  // words are copied as f32 are
        COPPICE_DCHECK(in_words(tensor, sizeof(float)));
        tensor.dtype = DType::kF32;
        tensor.cols = tensor.cols * element / int64_t{sizeof(float)};
        tensor.stride = tensor.stride * element / int64_t{sizeof(float)};
        return tensor;
      };
      return Gather(as_floats(part), as_floats(all), stream);
    }
    const DeviceGuard guard(ordinal_);
    for (int64_t begin = 0; begin < part.rows; begin += at_a_time) {
      const int64_t rows = std::min(at_a_time, part.rows - begin);
      const cuda::PeerShare share = {.part = static_cast<const uint4*>(part.Rows(begin, rows).data),
                                     .all = static_cast<uint4*>(all.Rows(begin, rows).data),
                                     .part_stride = part.stride * element / kWord,
                                     .all_stride = all.stride * element / kWord,
                                     .cols = static_cast<int32_t>(row_bytes / kWord)};
      COPPICE_RETURN_IF_ERROR(cuda::LaunchPeerShare(share, rows, inbox_, meeting_, overlaps_, Of(stream)));
    }
    return OkStatus();
  }

  Status Gather(ConstDeviceTensor part, DeviceTensor all, Stream stream) override {
    COPPICE_DCHECK(part.dtype == DType::kF32 && (all.data == nullptr || all.dtype == DType::kF32));
    COPPICE_ASSIGN_OR_RETURN(const Addresses parts, AddressesOf(part.data));
    cuda::PeerGather gather = {.rows = part.rows,
                               .part_cols = part.cols,
                               .part_stride = part.stride,
                               .all = static_cast<float*>(all.data),
                               .all_cols = all.cols,
                               .all_stride = all.stride};
    for (int rank = 0; rank < size(); ++rank) gather.part[rank] = static_cast<const float*>(parts[rank]);
    const DeviceGuard guard(ordinal_);
    return cuda::LaunchPeerAllGather(gather, meeting_, overlaps_, Of(stream));
  }

  Status MergeStates(const PartialStates& states, DeviceTensor merged, Stream stream) override {
    const DeviceGuard guard(ordinal_);
    const int64_t row_bytes = cuda::StateRowBytes(cuda::PeerStatesOf(states, merged));
    const int64_t at_a_time = inbox_.slot_bytes / row_bytes;
    COPPICE_CHECK(at_a_time > 0);
    for (int64_t begin = 0; begin < merged.rows; begin += at_a_time) {
      const int64_t rows = std::min(at_a_time, merged.rows - begin);
      const PartialStates part = {.ranks = states.ranks, .out = states.out.Rows(begin, rows), .lse = states.lse.Rows(begin, rows)};
      COPPICE_RETURN_IF_ERROR(cuda::LaunchPeerMergeStates(cuda::PeerStatesOf(part, merged.Rows(begin, rows)), rows, inbox_,
                                                          meeting_, overlaps_, Of(stream)));
    }
    return OkStatus();
  }

  Status Broadcast(void* data, int64_t bytes, Stream stream) override {
    COPPICE_DCHECK(bytes % int64_t{sizeof(uint32_t)} == 0 && bytes <= inbox_.slot_bytes);
    const DeviceGuard guard(ordinal_);
    return cuda::LaunchPeerBroadcast(static_cast<uint32_t*>(data), bytes / int64_t{sizeof(uint32_t)}, inbox_, meeting_, overlaps_,
                                     Of(stream));
  }

 private:
  using Addresses = std::array<const void*, kMostPeers>;

  static cudaStream_t Of(Stream stream) { return static_cast<cudaStream_t>(stream); }
  static cuda::PeerTerms TermsOf(const ConstDeviceTensor& terms) {
    return {.terms = terms.data, .stride = terms.stride, .dtype = terms.dtype};
  }

  // Where the other ranks have what this one has at `own`. Memory that is gathered lives as long as the ranks and all make the same
  // calls, so they exchange them once.
  Result<Addresses> AddressesOf(const void* own) {
    const auto known = addresses_.find(own);
    if (known != addresses_.end()) return known->second;
    group_.ranks_[rank_].shown = own;
    COPPICE_RETURN_IF_ERROR(group_.Barrier());
    Addresses all{};
    for (int rank = 0; rank < size(); ++rank) all[rank] = group_.ranks_[rank].shown;
    COPPICE_RETURN_IF_ERROR(group_.Barrier());
    addresses_[own] = all;
    return all;
  }

  PeerGroup& group_;
  const int rank_, ordinal_;
  const bool overlaps_;
  const cuda::PeerInbox inbox_;
  const cuda::PeerMeeting meeting_;
  std::map<const void*, Addresses> addresses_;
};

Result<std::unique_ptr<CommunicatorGroup>> PeerGroup::Create(std::span<const int> ordinals, int64_t max_bytes) {
  std::unique_ptr<PeerGroup> group(new PeerGroup(ordinals));
  group->slot_bytes_ = RoundUp(std::max<int64_t>(max_bytes, 1), 256);
  for (int rank = 0; rank < group->size(); ++rank) {
    Rank& made = group->ranks_[rank];
    COPPICE_ASSIGN_OR_RETURN(made.device, Device::CreateCuda(ordinals[rank]));
    const DeviceGuard guard(ordinals[rank]);
    for (const int other : ordinals) COPPICE_RETURN_IF_ERROR(EnableAccess(ordinals[rank], other));
    COPPICE_RETURN_IF_ERROR(cuda::LoadPeerKernels());
    constexpr size_t kWords = cuda::kMostPeerCtas;
    COPPICE_ASSIGN_OR_RETURN(made.inbox, made.device->Allocate(2 * group->size() * group->slot_bytes_));
    COPPICE_ASSIGN_OR_RETURN(made.few, made.device->Allocate(2 * group->size() * cuda::kFewSlotBytes));
    COPPICE_ASSIGN_OR_RETURN(made.arrived, made.device->Allocate(kWords * kMostPeers * sizeof(uint32_t)));
    COPPICE_ASSIGN_OR_RETURN(made.epochs, made.device->Allocate(kWords * sizeof(uint32_t)));
  }
  COPPICE_ASSIGN_OR_RETURN(group->failed_, group->ranks_.front().device->Allocate(sizeof(uint32_t), MemoryKind::kHostPinned));
  return std::unique_ptr<CommunicatorGroup>(std::move(group));
}

std::unique_ptr<Communicator> PeerGroup::MakeRank(int rank) {
  COPPICE_CHECK(rank >= 0 && rank < size());
  return std::make_unique<PeerCommunicator>(this, rank);
}

cuda::PeerInbox PeerGroup::Inbox() const {
  cuda::PeerInbox inbox = {.slot_bytes = slot_bytes_};
  for (int rank = 0; rank < size(); ++rank) {
    inbox.base[rank] = ranks_[rank].inbox.data();
    inbox.few[rank] = ranks_[rank].few.data();
  }
  return inbox;
}

cuda::PeerMeeting PeerGroup::MeetingOf(int rank) const {
  cuda::PeerMeeting meeting = {
      .epochs = ranks_[rank].epochs.As<uint32_t>(), .failed = failed_word(), .rank = rank, .ranks = size()};
  for (int other = 0; other < size(); ++other) meeting.arrived[other] = ranks_[other].arrived.As<uint32_t>();
  return meeting;
}

// A call that some ranks made and one did not is in some streams: its kernels end when they have waited long enough. Errors are the
// next call's.
void PeerGroup::OnReset() {
  for (const Rank& rank : ranks_) {
    const DeviceGuard guard(rank.device->ordinal());
    cudaDeviceSynchronize();
  }
  for (const Rank& rank : ranks_) {
    const DeviceGuard guard(rank.device->ordinal());
    for (const DeviceMemory* const memory : {&rank.few, &rank.arrived, &rank.epochs}) cudaMemset(memory->data(), 0, memory->size());
    cudaDeviceSynchronize();
  }
  *failed_word() = 0;
}

}  // namespace

Result<std::unique_ptr<CommunicatorGroup>> MakePeerGroup(std::span<const int> ordinals, int64_t max_bytes) {
  if (ordinals.size() > static_cast<size_t>(kMostPeers)) {
    return InvalidArgument("a model is divided among " + std::to_string(ordinals.size()) + " GPUs; expected at most " +
                           std::to_string(kMostPeers));
  }
  return PeerGroup::Create(ordinals, max_bytes);
}

}  // namespace coppice::ops
