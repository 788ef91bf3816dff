// Ranks that speak through NCCL, for GPUs that cannot read each other's memory. The library is looked for when a group is made, so
// that nothing depends on it; the build needs its header. Layer: ops/cuda.
#include <cuda_runtime_api.h>

#include <string>

#include "core/check.h"
#include "ops/peer_group.h"

#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/cuda/cuda_status.h"
#include "core/device.h"

namespace coppice::ops {
namespace {

using coppice::cuda::CudaStatus;
using coppice::cuda::DeviceGuard;

constexpr const char* kLibrary = "libnccl.so.2";

// The functions of NCCL that are called. Loaded once and never unloaded.
struct Nccl {
  decltype(&ncclCommInitAll) init_all = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;

  static Result<const Nccl*> Find() {
    static const Result<Nccl> found = Load();
    COPPICE_RETURN_IF_ERROR(found.status());
    return &*found;
  }
  Status Of(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess) return OkStatus();
    return Unavailable(std::string(what) + ": " + error_string(result) + "; NCCL_DEBUG=WARN in the environment says more");
  }

 private:
  static Result<Nccl> Load() {
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return Unavailable(std::string(dlerror()) + "; NCCL is in PyPI's nvidia-nccl-cu13");
    Nccl nccl;
    bool all = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      all &= function != nullptr;
    };
    find(nccl.init_all, "ncclCommInitAll");
    find(nccl.abort, "ncclCommAbort");
    find(nccl.async_error, "ncclCommGetAsyncError");
    find(nccl.error_string, "ncclGetErrorString");
    find(nccl.all_reduce, "ncclAllReduce");
    find(nccl.broadcast, "ncclBroadcast");
    find(nccl.send, "ncclSend");
    find(nccl.receive, "ncclRecv");
    find(nccl.group_start, "ncclGroupStart");
    find(nccl.group_end, "ncclGroupEnd");
    if (!all) return Unavailable(std::string(kLibrary) + " lacks a function of NCCL 2.7; install a later one");
    return nccl;
  }
};

class NcclGroup final : public CommunicatorGroup {
 public:
  static Result<std::unique_ptr<CommunicatorGroup>> Create(std::span<const int> ordinals, int64_t max_bytes) {
    COPPICE_ASSIGN_OR_RETURN(const Nccl* const nccl, Nccl::Find());
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
    for (const ncclComm_t communicator : communicators_) {
      ncclResult_t result = ncclSuccess;
      COPPICE_RETURN_IF_ERROR(nccl_->Of(nccl_->async_error(communicator, &result), "ncclCommGetAsyncError"));
      if (result != ncclInProgress) COPPICE_RETURN_IF_ERROR(nccl_->Of(result, "NCCL"));
    }
    return OkStatus();
  }

 private:
  friend class NcclCommunicator;
  NcclGroup(const Nccl* nccl, std::span<const int> ordinals, int64_t max_bytes)
      : CommunicatorGroup(static_cast<int>(ordinals.size())),
        nccl_(nccl),
        ordinals_(ordinals.begin(), ordinals.end()),
        max_bytes_(max_bytes) {}

  Status Connect() {
    communicators_.resize(ordinals_.size());
    const Status status =
        nccl_->Of(nccl_->init_all(communicators_.data(), static_cast<int>(ordinals_.size()), ordinals_.data()), "ncclCommInitAll");
    if (!status.ok()) communicators_.clear();
    return status;
  }
  void Disconnect() {
    for (const ncclComm_t communicator : communicators_) (void)nccl_->abort(communicator);
    communicators_.clear();
  }
  // A call that some ranks made and one did not waits until its communicators are gone.
  void OnReset() override {
    Disconnect();
    reconnected_ = Connect();
  }

  const Nccl* const nccl_;
  const std::vector<int> ordinals_;
  const int64_t max_bytes_;
  std::vector<ncclComm_t> communicators_;
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
    return nccl_.Of(nccl_.all_reduce(x.data, x.data, x.rows * x.cols, ncclFloat32, ncclSum, communicator(), Of(stream)),
                    "ncclAllReduce");
  }

  // Parts come as they are, and are copied to where they belong.
  Status AllGather(ConstDeviceTensor part, DeviceTensor all, Stream stream) override {
    COPPICE_DCHECK(part.dtype == DType::kF32 && part.stride == part.cols && (rank_ == 0) == (all.data != nullptr));
    COPPICE_RETURN_IF_ERROR(group_.reconnected_);
    const DeviceGuard guard(ordinal_);
    const int64_t bytes_of_row = part.cols * int64_t{sizeof(float)};
    const int64_t rows_at_a_time = std::max<int64_t>(group_.max_bytes_ / (bytes_of_row * (size() - 1)), 1);
    for (int64_t first = 0; first < part.rows; first += rows_at_a_time) {
      const int64_t rows = std::min(rows_at_a_time, part.rows - first);
      const auto* const own = static_cast<const float*>(part.data) + first * part.cols;
      if (rank_ > 0) {
        COPPICE_RETURN_IF_ERROR(
            nccl_.Of(nccl_.send(own, rows * part.cols, ncclFloat32, /*peer=*/0, communicator(), Of(stream)), "ncclSend"));
        continue;
      }
      COPPICE_RETURN_IF_ERROR(nccl_.Of(nccl_.group_start(), "ncclGroupStart"));
      Status received;
      for (int peer = 1; peer < size() && received.ok(); ++peer) {
        received =
            nccl_.Of(nccl_.receive(From(peer, rows * part.cols), rows * part.cols, ncclFloat32, peer, communicator(), Of(stream)),
                     "ncclRecv");
      }
      COPPICE_RETURN_IF_ERROR(nccl_.Of(nccl_.group_end(), "ncclGroupEnd"));
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
    return nccl_.Of(nccl_.broadcast(data, data, bytes, ncclUint8, /*root=*/0, communicator(), Of(stream)), "ncclBroadcast");
  }

 private:
  static cudaStream_t Of(Stream stream) { return static_cast<cudaStream_t>(stream); }
  ncclComm_t communicator() const { return group_.communicators_[rank_]; }
  float* From(int peer, int64_t count) const { return group_.received_.As<float>() + (peer - 1) * count; }

  NcclGroup& group_;
  const Nccl& nccl_;
  const int rank_, ordinal_;
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

#else

namespace coppice::ops {

Result<std::unique_ptr<CommunicatorGroup>> MakeNcclGroup(std::span<const int>, int64_t) {
  return Unavailable("this build had no nccl.h, which CUDA's toolkit or PyPI's nvidia-nccl-cu13 has");
}

}  // namespace coppice::ops

#endif
