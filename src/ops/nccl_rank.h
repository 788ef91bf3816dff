// A rank of a group of processes, which receives what the group's first rank broadcasts through NCCL. How the processes meet is not
// its matter. No call outlasts what it is allowed to: NCCL's own would wait for a process that is gone.
// Layer: ops.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "coppice/core/status.h"
#include "core/device.h"
#include "ops/nccl_library.h"

namespace coppice::ops {

// Thread-compatible. After an error the group has ended, for this rank, and other calls answer the same.
class NcclRank {
 public:
  // Asked every millisecond while a call waits; an error ends the wait, and the group.
  using MayWait = std::function<Status()>;
  struct Place {
    NcclId group{};
    int rank = 1;
    int size = 2;          // ranks of the group
    bool warms_up = true;  // the ranks add up a number once all have joined, as vLLM's PyNcclCommunicator makes them
  };

  // UNIMPLEMENTED: NCCL is not there, or does not write to the device's memory.
  static Status CheckSupported(DeviceKind kind);
  // Returns when all ranks have joined, and have added up a number where they are to. `device` outlives the rank. Errors as
  // CheckSupported, of the device, UNAVAILABLE with NCCL's reason, and those of `may_wait`.
  static Result<std::unique_ptr<NcclRank>> Join(const Place& place, Device* device, const MayWait& may_wait);
  // Ends the group, whatever is under way.
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  // The next `count` elements that the first rank broadcasts come to `to`, of the device's memory, in stream order. `type`: one of
  // NcclLibrary. Errors as Join.
  Status Receive(void* to, int64_t count, int type, const MayWait& may_wait);
  // A point behind what was received so far.
  Result<std::unique_ptr<Event>> Mark();
  // Returns when what came before the mark lies where it belongs. Errors as Join.
  Status Await(const Event& mark, const MayWait& may_wait);

 private:
  NcclRank(const NcclLibrary* nccl, Device* device) : nccl_(*nccl), device_(*device) {}
  Status Connect(const Place& place, const MayWait& may_wait);
  Status WarmUp(const MayWait& may_wait);
  // Ends the group if the status is no OK, which it returns.
  Status Keep(Status status);
  Status CheckOpen() const;
  // Returns when the call `what`, which returned `result`, is done, so that another may be made.
  Status Settle(int result, const char* what, const MayWait& may_wait);

  const NcclLibrary& nccl_;
  Device& device_;
  std::unique_ptr<OwnedStream> stream_;
  DeviceMemory number_;  // of WarmUp; there until the group has ended
  NcclLibrary::Handle handle_ = nullptr;
  Status ended_;  // why
};

}  // namespace coppice::ops
