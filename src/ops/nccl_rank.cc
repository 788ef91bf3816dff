#include "ops/nccl_rank.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "core/check.h"

namespace coppice::ops {
namespace {

using Clock = std::chrono::steady_clock;

// A wait that is short is over sooner than a sleep; a long one leaves the core to others.
class Pause {
 public:
  void operator()() {
    if (Clock::now() - began_ < std::chrono::microseconds(200)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  const Clock::time_point began_ = Clock::now();
};

}  // namespace

Status NcclRank::CheckSupported(DeviceKind kind) {
  const Result<const NcclLibrary*> nccl = NcclLibrary::Find();
  if (kind == DeviceKind::kCpu && (!nccl.ok() || !(*nccl)->takes_host_memory()))
    return Unimplemented("NCCL writes to the memory of GPUs alone, and the model runs on a CPU");
  return nccl.ok() ? OkStatus() : Unimplemented(nccl.status().message());
}

Result<std::unique_ptr<NcclRank>> NcclRank::Join(const Place& place, Device* device, const MayWait& may_wait) {
  COPPICE_RETURN_IF_ERROR(CheckSupported(device->kind()));
  COPPICE_ASSIGN_OR_RETURN(const NcclLibrary* const nccl, NcclLibrary::Find());
  std::unique_ptr<NcclRank> rank(new NcclRank(nccl, device));
  COPPICE_ASSIGN_OR_RETURN(rank->stream_, device->CreateStream());
  COPPICE_RETURN_IF_ERROR(rank->Keep(rank->Connect(place, may_wait)));
  if (place.warms_up) COPPICE_RETURN_IF_ERROR(rank->Keep(rank->WarmUp(may_wait)));
  return rank;
}

NcclRank::~NcclRank() { (void)Keep(Unavailable("the group has ended")); }

Status NcclRank::Connect(const Place& place, const MayWait& may_wait) {
  COPPICE_RETURN_IF_ERROR(device_.MakeCurrent());
  NcclConfig config;
  config.blocking = 0;
  const int result = nccl_.init_rank(&handle_, place.size, place.group, place.rank, &config);
  return Settle(result, "ncclCommInitRankConfig", may_wait);
}

Status NcclRank::WarmUp(const MayWait& may_wait) {
  COPPICE_ASSIGN_OR_RETURN(number_, device_.Allocate(sizeof(float)));
  const int result =
      nccl_.all_reduce(number_.data(), number_.data(), 1, NcclLibrary::kF32, NcclLibrary::kSum, handle_, stream_->get());
  COPPICE_RETURN_IF_ERROR(Settle(result, "ncclAllReduce", may_wait));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Event> mark, Mark());
  return Await(*mark, may_wait);
}

Status NcclRank::Receive(void* to, int64_t count, int type, const MayWait& may_wait) {
  COPPICE_RETURN_IF_ERROR(CheckOpen());
  return Keep([&]() -> Status {
    COPPICE_RETURN_IF_ERROR(device_.MakeCurrent());
    const int result = nccl_.broadcast(nullptr, to, static_cast<size_t>(count), type, /*root=*/0, handle_, stream_->get());
    return Settle(result, "ncclBroadcast", may_wait);
  }());
}

Result<std::unique_ptr<Event>> NcclRank::Mark() {
  COPPICE_RETURN_IF_ERROR(CheckOpen());
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Event> mark, device_.CreateEvent());
  COPPICE_RETURN_IF_ERROR(Keep(device_.Record(*mark, stream_->get())));
  return mark;
}

Status NcclRank::Await(const Event& mark, const MayWait& may_wait) {
  COPPICE_RETURN_IF_ERROR(CheckOpen());
  return Keep([&]() -> Status {
    for (Pause pause;; pause()) {
      COPPICE_ASSIGN_OR_RETURN(const bool is_done, device_.IsDone(mark));
      if (is_done) return OkStatus();
      COPPICE_RETURN_IF_ERROR(nccl_.IsDone(handle_).status());
      COPPICE_RETURN_IF_ERROR(may_wait());
    }
  }());
}

Status NcclRank::Settle(int result, const char* what, const MayWait& may_wait) {
  if (result != NcclLibrary::kInProgress) COPPICE_RETURN_IF_ERROR(nccl_.StatusOf(result, what));
  for (Pause pause;; pause()) {
    COPPICE_ASSIGN_OR_RETURN(const bool is_done, nccl_.IsDone(handle_));
    if (is_done) return OkStatus();
    COPPICE_RETURN_IF_ERROR(may_wait());
  }
}

Status NcclRank::CheckOpen() const { return ended_; }

Status NcclRank::Keep(Status status) {
  if (status.ok() || !ended_.ok()) return status;
  ended_ = status;
  if (handle_ != nullptr) {
    (void)device_.MakeCurrent();
    (void)nccl_.abort(std::exchange(handle_, nullptr));
    (void)device_.Synchronize(stream_->get());  // what was aborted writes no more
  }
  return status;
}

}  // namespace coppice::ops
