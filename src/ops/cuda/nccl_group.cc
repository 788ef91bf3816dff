// Ranks that speak through NCCL, for GPUs that cannot read each other's memory. Layer: ops/cuda.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/cuda/cuda_status.h"
#include "core/device.h"
#include "ops/cuda/peer_kernels.h"
#include "ops/nccl_library.h"
#include "ops/peer_group.h"

#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

namespace coppice::ops {
namespace {

using coppice::cuda::CudaStatus;
using coppice::cuda::DeviceGuard;

#ifdef NCCL_VERSION_CODE
static_assert(NcclLibrary::kSuccess == ncclSuccess);
static_assert(NcclLibrary::kUint8 == ncclUint8 && NcclLibrary::kF16 == ncclFloat16 && NcclLibrary::kF32 == ncclFloat32);
static_assert(NcclLibrary::kBF16 == ncclBfloat16 && NcclLibrary::kSum == ncclSum);
static_assert(sizeof(NcclId) == sizeof(ncclUniqueId) && alignof(NcclId) == alignof(ncclUniqueId));
#if NCCL_VERSION_CODE >= 21400
static_assert(NcclLibrary::kInProgress == ncclInProgress);
static_assert(offsetof(NcclConfig, size) == offsetof(ncclConfig_t, size) && sizeof(NcclConfig) <= sizeof(ncclConfig_t));
static_assert(offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
#endif
#endif

class NcclGroup final : public CommunicatorGroup {
 public:
  static Result<std::unique_ptr<CommunicatorGroup>> Create(std::span<const int> ordinals, int64_t max_bytes) {
    COPPICE_ASSIGN_OR_RETURN(const NcclLibrary* const nccl, NcclLibrary::Find());
    std::unique_ptr<NcclGroup> group(new NcclGroup(nccl, ordinals, max_bytes));
    COPPICE_RETURN_IF_ERROR(group->Connect());
    COPPICE_ASSIGN_OR_RETURN(group->first_, Device::CreateCuda(ordinals.front()));
    COPPICE_ASSIGN_OR_RETURN(group->received_, group->first_->Allocate(max_bytes));
    return std::unique_ptr<CommunicatorGroup>(std::move(group));
  }
  ~NcclGroup() override { Disconnect(); }

  std::unique_ptr<Communicator> MakeRank(int rank) override;
  void EnterThread(int rank) const override { cudaSetDevice(ordinals_[rank]); }
  Status CheckDone() const override {
    for (const NcclLibrary::Handle communicator : communicators_) COPPICE_RETURN_IF_ERROR(nccl_->IsDone(communicator).status());
    return OkStatus();
  }

 private:
  friend class NcclCommunicator;
  NcclGroup(const NcclLibrary* nccl, std::span<const int> ordinals, int64_t max_bytes)
      : CommunicatorGroup(static_cast<int>(ordinals.size())),
        nccl_(nccl),
        ordinals_(ordinals.begin(), ordinals.end()),
        max_bytes_(max_bytes) {}

  Status Connect() {
    communicators_.resize(ordinals_.size());
    const Status status = nccl_->StatusOf(
        nccl_->init_all(communicators_.data(), static_cast<int>(ordinals_.size()), ordinals_.data()), "ncclCommInitAll");
    if (!status.ok()) communicators_.clear();
    return status;
  }
  void Disconnect() {
    for (const NcclLibrary::Handle communicator : communicators_) (void)nccl_->abort(communicator);
    communicators_.clear();
  }
  // A call that some ranks made and one did not waits until its communicators are gone.
  void OnReset() override {
    Disconnect();
    reconnected_ = Connect();
  }

  const NcclLibrary* const nccl_;
  const std::vector<int> ordinals_;
  const int64_t max_bytes_;
  std::vector<NcclLibrary::Handle> communicators_;
  Status reconnected_;  // of the last Reset
  std::unique_ptr<Device> first_;
  DeviceMemory received_;  // parts of the others, on the first rank's device
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(NcclGroup* group, int rank)
      : group_(*group), nccl_(*group->nccl_), rank_(rank), ordinal_(group->ordinals_[rank]) {}

  int rank() const override { return rank_; }
  int size() const override { return group_.size(); }
  Status Barrier() override { return group_.Barrier(); }

  Status AllReduce(DeviceTensor x, Stream stream) override {
    COPPICE_DCHECK(x.dtype == DType::kF32 && x.stride == x.cols);
    COPPICE_RETURN_IF_ERROR(group_.reconnected_);
    const DeviceGuard guard(ordinal_);
    return nccl_.StatusOf(
        nccl_.all_reduce(x.data, x.data, x.rows * x.cols, NcclLibrary::kF32, NcclLibrary::kSum, communicator(), Of(stream)),
        "ncclAllReduce");
  }

  Status AllGather(ConstDeviceTensor part, DeviceTensor all, Stream stream) override {
    COPPICE_DCHECK(part.stride == part.cols && all.data != nullptr);
    COPPICE_RETURN_IF_ERROR(Prepare());
    const DeviceGuard guard(ordinal_);
    const RankRun ranks = {0, size()};
    const int64_t row_bytes = part.cols * static_cast<int64_t>(SizeOf(part.dtype)), at_a_time = RowsAtATime(ranks, row_bytes);
    for (int64_t first = 0; first < part.rows; first += at_a_time) {
      const int64_t rows = std::min(at_a_time, part.rows - first);
      const ConstDeviceTensor own = part.Rows(first, rows);
      const DeviceTensor to = all.Rows(first, rows);
      COPPICE_RETURN_IF_ERROR(Exchange(
          ranks, rows * row_bytes, [&](int) { return own.data; }, stream));
      for (int peer = 0; peer < size(); ++peer) {
        COPPICE_RETURN_IF_ERROR(CopyRows(to.Cols(peer * part.cols, part.cols).data, to.stride * row_bytes / part.cols,
                                         peer == rank_ ? own.data : Received(ranks, peer, rows * row_bytes), row_bytes, rows,
                                         row_bytes, stream));
      }
    }
    return OkStatus();
  }

  // The data for a rank lie together, states before their lse.
  Status MergeStates(const PartialStates& states, DeviceTensor merged, Stream stream) override {
    COPPICE_RETURN_IF_ERROR(Prepare());
    const DeviceGuard guard(ordinal_);
    const RankRun ranks = states.ranks;
    const int64_t heads = states.lse.cols / ranks.count, element = static_cast<int64_t>(SizeOf(merged.dtype));
    const int64_t out_bytes = merged.cols * element, lse_bytes = heads * int64_t{sizeof(float)};
    const int64_t row_bytes = out_bytes + lse_bytes, at_a_time = RowsAtATime(ranks, row_bytes);
    for (int64_t first = 0; first < merged.rows; first += at_a_time) {
      const int64_t rows = std::min(at_a_time, merged.rows - first), block = rows * row_bytes;
      const ConstDeviceTensor out = states.out.Rows(first, rows), lse = states.lse.Rows(first, rows);
      const auto sent = [&](int peer) { return sent_.data() + PlaceOf(ranks, peer) * block; };
      for (int i = 0; i < ranks.count; ++i) {
        if (ranks.first + i == rank_) continue;
        std::byte* const to = sent(ranks.first + i);
        COPPICE_RETURN_IF_ERROR(
            CopyRows(to, out_bytes, out.Cols(i * merged.cols, merged.cols).data, out.stride * element, rows, out_bytes, stream));
        COPPICE_RETURN_IF_ERROR(CopyRows(to + rows * out_bytes, lse_bytes, lse.Cols(i * heads, heads).data,
                                         lse.stride * int64_t{sizeof(float)}, rows, lse_bytes, stream));
      }
      COPPICE_RETURN_IF_ERROR(Exchange(ranks, block, sent, stream));
      cuda::GatheredStates gathered;
      for (int i = 0; i < ranks.count; ++i) {
        const bool is_own = ranks.first + i == rank_;
        const std::byte* const from = is_own ? nullptr : Received(ranks, ranks.first + i, block);
        gathered.out[i] = is_own ? out.Cols(i * merged.cols, merged.cols).data : from;
        gathered.out_stride[i] = is_own ? out.stride : merged.cols;
        gathered.lse[i] = static_cast<const float*>(is_own ? lse.Cols(i * heads, heads).data : from + rows * out_bytes);
        gathered.lse_stride[i] = is_own ? lse.stride : heads;
      }
      const PartialStates part = {.ranks = ranks, .out = out, .lse = lse};
      COPPICE_RETURN_IF_ERROR(cuda::LaunchMergeGathered(cuda::PeerStatesOf(part, merged.Rows(first, rows)), gathered, rows,
                                                        /*overlaps=*/false, Of(stream)));
    }
    return OkStatus();
  }

  // Parts come as they are, and are copied to where they belong.
  Status Gather(ConstDeviceTensor part, DeviceTensor all, Stream stream) override {
    COPPICE_DCHECK(part.dtype == DType::kF32 && part.stride == part.cols && (rank_ == 0) == (all.data != nullptr));
    COPPICE_RETURN_IF_ERROR(group_.reconnected_);
    const DeviceGuard guard(ordinal_);
    const int64_t bytes_of_row = part.cols * int64_t{sizeof(float)};
    const int64_t rows_at_a_time = std::max<int64_t>(group_.max_bytes_ / (bytes_of_row * (size() - 1)), 1);
    for (int64_t first = 0; first < part.rows; first += rows_at_a_time) {
      const int64_t rows = std::min(rows_at_a_time, part.rows - first);
      const auto* const own = static_cast<const float*>(part.data) + first * part.cols;
      if (rank_ > 0) {
        COPPICE_RETURN_IF_ERROR(nccl_.StatusOf(
            nccl_.send(own, rows * part.cols, NcclLibrary::kF32, /*peer=*/0, communicator(), Of(stream)), "ncclSend"));
        continue;
      }
      COPPICE_RETURN_IF_ERROR(nccl_.StatusOf(nccl_.group_start(), "ncclGroupStart"));
      Status received;
      for (int peer = 1; peer < size() && received.ok(); ++peer) {
        received = nccl_.StatusOf(
            nccl_.receive(From(peer, rows * part.cols), rows * part.cols, NcclLibrary::kF32, peer, communicator(), Of(stream)),
            "ncclRecv");
      }
      COPPICE_RETURN_IF_ERROR(nccl_.StatusOf(nccl_.group_end(), "ncclGroupEnd"));
      COPPICE_RETURN_IF_ERROR(received);
      for (int peer = 0; peer < size(); ++peer) {
        const int64_t column = peer * part.cols, cols = std::min(part.cols, all.cols - column);
        if (cols <= 0) break;
        COPPICE_RETURN_IF_ERROR(
            CudaStatus(cudaMemcpy2DAsync(static_cast<float*>(all.data) + first * all.stride + column, all.stride * sizeof(float),
                                         peer == 0 ? own : From(peer, rows * part.cols), bytes_of_row, cols * sizeof(float), rows,
                                         cudaMemcpyDeviceToDevice, Of(stream)),
                       "cudaMemcpy2DAsync"));
      }
    }
    return OkStatus();
  }

  Status Broadcast(void* data, int64_t bytes, Stream stream) override {
    COPPICE_RETURN_IF_ERROR(group_.reconnected_);
    const DeviceGuard guard(ordinal_);
    return nccl_.StatusOf(nccl_.broadcast(data, data, bytes, NcclLibrary::kUint8, /*root=*/0, communicator(), Of(stream)),
                          "ncclBroadcast");
  }

 private:
  static cudaStream_t Of(Stream stream) { return static_cast<cudaStream_t>(stream); }
  NcclLibrary::Handle communicator() const { return group_.communicators_[rank_]; }
  // The memory of AllGather and MergeStates, which are called before they are captured.
  Status Prepare() {
    COPPICE_RETURN_IF_ERROR(group_.reconnected_);
    if (device_) return OkStatus();
    COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::CreateCuda(ordinal_));
    COPPICE_ASSIGN_OR_RETURN(sent_, device->Allocate(group_.max_bytes_));
    COPPICE_ASSIGN_OR_RETURN(received_, device->Allocate(group_.max_bytes_));
    device_ = std::move(device);
    return OkStatus();
  }
  int64_t RowsAtATime(RankRun ranks, int64_t row_bytes) const {
    return std::max<int64_t>(group_.max_bytes_ / (row_bytes * std::max(ranks.count - 1, 1)), 1);
  }
  // Of the others of a run of ranks, the how many-th it is.
  int PlaceOf(RankRun ranks, int peer) const { return peer - ranks.first - (peer > rank_ ? 1 : 0); }
  const std::byte* Received(RankRun ranks, int peer, int64_t bytes) const {
    return received_.data() + PlaceOf(ranks, peer) * bytes;
  }
  // Sends each of the others what is at sent(peer), and receives as much.
  template <class Sent>
  Status Exchange(RankRun ranks, int64_t bytes, const Sent& sent, Stream stream) {
    COPPICE_RETURN_IF_ERROR(nccl_.StatusOf(nccl_.group_start(), "ncclGroupStart"));
    Status status;
    for (int peer = ranks.first; peer <= ranks.last() && status.ok(); ++peer) {
      if (peer == rank_) continue;
      status = nccl_.StatusOf(nccl_.send(sent(peer), bytes, NcclLibrary::kUint8, peer, communicator(), Of(stream)), "ncclSend");
      if (!status.ok()) break;
      std::byte* const to = received_.data() + PlaceOf(ranks, peer) * bytes;
      status = nccl_.StatusOf(nccl_.receive(to, bytes, NcclLibrary::kUint8, peer, communicator(), Of(stream)), "ncclRecv");
    }
    COPPICE_RETURN_IF_ERROR(nccl_.StatusOf(nccl_.group_end(), "ncclGroupEnd"));
    return status;
  }
  // Strides in bytes.
  static Status CopyRows(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t rows, int64_t bytes,
                         Stream stream) {
    return CudaStatus(cudaMemcpy2DAsync(to, to_stride, from, from_stride, bytes, rows, cudaMemcpyDeviceToDevice, Of(stream)),
                      "cudaMemcpy2DAsync");
  }
  float* From(int peer, int64_t count) const { return group_.received_.As<float>() + (peer - 1) * count; }

  NcclGroup& group_;
  const NcclLibrary& nccl_;
  const int rank_, ordinal_;
  std::unique_ptr<Device> device_;  // before its memory
  DeviceMemory sent_, received_;
};

std::unique_ptr<Communicator> NcclGroup::MakeRank(int rank) {
  COPPICE_CHECK(rank >= 0 && rank < size());
  return std::make_unique<NcclCommunicator>(this, rank);
}

}  // namespace

Result<std::unique_ptr<CommunicatorGroup>> MakeNcclGroup(std::span<const int> ordinals, int64_t max_bytes) {
  return NcclGroup::Create(ordinals, max_bytes);
}

}  // namespace coppice::ops
