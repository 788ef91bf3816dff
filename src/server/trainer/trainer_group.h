// The group that a trainer and this server make, by NCCL, for weights that the trainer broadcasts: how they meet, and what comes
// then. The trainer's side is vLLM's StatelessProcessGroup and PyNcclCommunicator, or a group of torch.distributed. Layer: server.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/weights.h"
#include "core/device.h"
#include "ops/nccl_rank.h"
#include "server/trainer/tcp_store.h"
#include "server/trainer/weight_message.h"

namespace coppice::server {

// Thread-compatible. After an error the group has ended: what the trainer broadcasts and what is expected would be out of step.
class TrainerGroup {
 public:
  struct Options {
    std::chrono::milliseconds patience{60'000};  // for a group to be made, and for each part of the weights
    std::stop_token stop = {};                   // ends waits
  };

  // Meets the trainer, which has its store at the group's address or will have. A group of torch.distributed has a rank once the
  // trainer broadcasts, which is when PyTorch gives it a name. UNIMPLEMENTED: NCCL is not there, or does not write
  // to the device's memory; INVALID_ARGUMENT: the address is unknown, or what is there is no store, or holds no name of a group;
  // UNAVAILABLE: the trainer does not come or has gone, the server ends, or NCCL refuses.
  static Result<std::unique_ptr<TrainerGroup>> Join(const GroupInfo& info, std::unique_ptr<Device> device, Options options);
  ~TrainerGroup();
  TrainerGroup(const TrainerGroup&) = delete;
  TrainerGroup& operator=(const TrainerGroup&) = delete;

  DeviceKind device_kind() const { return device_->kind(); }

  using Bring = std::function<Status(std::span<const WeightTensor>, Device*)>;
  // Receives the tensors in their order, and gives `bring` some of them at a time, in the device's memory, which is theirs until it
  // returns: meanwhile the next ones come. UNAVAILABLE as Join; RESOURCE_EXHAUSTED: the device has no memory for them; else the
  // error of `bring`.
  Status Receive(std::span<const SegmentTensor> tensors, const BroadcastSource& form, const Bring& bring);

 private:
  // Tensors that lie behind each other in one piece of memory.
  struct Part {
    std::vector<WeightTensor> tensors;  // `data`, once it has its place
    std::vector<int64_t> offsets;       // of each, bytes
    int64_t bytes = 0;
    bool is_packed = false;
    std::unique_ptr<Event> mark;
  };

  TrainerGroup(std::unique_ptr<Device> device, TcpStore store, Options options, GroupInfo info)
      : options_(std::move(options)), info_(std::move(info)), device_(std::move(device)), store_(std::move(store)) {}
  // Makes the rank, with the name of the group that the trainer has stored or will store.
  Status MakeRank(const ops::NcclRank::MayWait& may_wait);
  static std::vector<Part> Divide(std::span<const SegmentTensor> tensors, bool packed, int64_t buffer_bytes, DeviceKind kind);
  // Two pieces of memory where the device has them, so that one is filled while the other is read.
  Status Reserve(std::span<const Part> parts);
  Status Request(Part* part, const DeviceMemory& memory);
  Status ReceiveParts(std::span<Part> parts, const Bring& bring);
  // Until `patience` from now is over.
  ops::NcclRank::MayWait UntilLate() const;

  const Options options_;
  const GroupInfo info_;
  const std::unique_ptr<Device> device_;
  TcpStore store_;
  std::vector<DeviceMemory> memory_;  // while Receive runs
  bool has_ended_ = false;
  std::unique_ptr<ops::NcclRank> rank_;  // last: it ends before the memory that it writes goes
};

}  // namespace coppice::server
