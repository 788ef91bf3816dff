// What the ranks of one model say to each other within a step: each holds a part of every layer, and all make the same calls in the
// same order. Layer: core.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "coppice/core/executor.h"
#include "coppice/core/status.h"
#include "core/cache_line.h"
#include "core/device_tensor.h"

namespace coppice {

// A rank's end. Thread-compatible: a rank is one thread. Calls are in stream order; an error is that of the rank that failed first,
// whichever rank it is (CommunicatorGroup::Abort).
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // `x`, f32 without gaps and of one shape on all ranks, becomes the sum over ranks. The sum is f32 in the order of the ranks: the
  // same bits on every rank and in every run.
  virtual Status AllReduce(DeviceTensor x, Stream stream) = 0;
  // `all` becomes the parts of all ranks side by side, as many columns as it has. A rank may give an `all` without memory: its part
  // counts, and it receives nothing.
  virtual Status AllGather(ConstDeviceTensor part, DeviceTensor all, Stream stream) = 0;
  // The first rank's `bytes` at `data`, device memory, become those of all.
  virtual Status Broadcast(void* data, int64_t bytes, Stream stream) = 0;
  // Returns once all ranks have called it, whatever their streams do.
  virtual Status Barrier() = 0;
};

// Of a model on one rank: there is nothing to exchange.
std::unique_ptr<Communicator> MakeSingleRank();

// The ranks of one model, which are threads of this process. Outlives its ends. Thread-safe, but for Reset.
class CommunicatorGroup {
 public:
  explicit CommunicatorGroup(int size) : size_(size) {}
  virtual ~CommunicatorGroup() = default;
  CommunicatorGroup(const CommunicatorGroup&) = delete;
  CommunicatorGroup& operator=(const CommunicatorGroup&) = delete;

  int size() const { return size_; }
  virtual std::unique_ptr<Communicator> MakeRank(int rank) = 0;
  // Called once on the thread of each rank but the first, before the rank's other calls.
  virtual void EnterThread(int /*rank*/) const {}

  // Ends the calls of all ranks, those that wait and those that come, with the first status that is given here.
  void Abort(const Status& status);
  // What Abort was given first; OK without one.
  Status status() const;
  // Undoes Abort. REQUIRES: no rank is within a call.
  void Reset();
  // Whether what the ranks' devices have done so far came to its end: an error where a rank was waited for in vain.
  virtual Status CheckDone() const { return OkStatus(); }

 protected:
  // Returns once all ranks have called it, or with Abort's status.
  Status Barrier();

 private:
  // What Reset means to devices.
  virtual void OnReset() {}

  const int size_;
  alignas(kCacheLine) std::atomic<int> arrived_{0};
  alignas(kCacheLine) std::atomic<uint32_t> barriers_{0};  // grows by one for each that all ranks reached, and at Abort
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  Status status_;  // of Abort
};

// Ranks whose device memory is the host's. A rank's sums and copies run on its executor, which outlives the group.
std::unique_ptr<CommunicatorGroup> MakeThreadGroup(std::span<Executor* const> executors);

}  // namespace coppice
