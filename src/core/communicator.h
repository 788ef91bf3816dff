// The exchange of a model's ranks within a step: each holds a part of every layer, and all make the same calls in the
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

// Ranks that follow each other.
struct RankRun {
  int first = 0, count = 1;

  int last() const { return first + count - 1; }
};

// Attention states (out normalised, lse a natural logarithm) of the rows that `ranks` have in common, each over its own part of KV.
// The heads of rank first + i are the i-th of `count` equal runs of columns of `out` and of `lse`. lse -inf: the part has nothing
// that the row sees, whatever `out` holds.
struct PartialStates {
  RankRun ranks;
  ConstDeviceTensor out;  // [rows, count * heads * head_dim]
  ConstDeviceTensor lse;  // [rows, count * heads] f32
};

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
  // `all` of the first rank, f32, becomes the parts of all ranks side by side, as many columns as it has. The others give an `all`
  // without memory.
  virtual Status Gather(ConstDeviceTensor part, DeviceTensor all, Stream stream) = 0;
  // The same on all ranks, of whole parts without gaps and of any dtype, a rank's row of whole words of 4 bytes.
  virtual Status AllGather(ConstDeviceTensor part, DeviceTensor all, Stream stream) = 0;
  // `merged`, [rows, heads * head_dim] of the dtype of states.out, becomes the attention of this rank's heads over all of KV: the
  // states that states.ranks have of them, this rank among them, merged in f32 and in the order of the ranks. Each rank calls it,
  // with as many rows and, of one run of ranks, the same shapes.
  virtual Status MergeStates(const PartialStates& states, DeviceTensor merged, Stream stream) = 0;
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
  // The status of the first Abort; OK without one.
  Status status() const;
  // Undoes Abort. REQUIRES: no rank is within a call.
  void Reset();
  // Whether what the ranks' devices have done so far came to its end: an error where a rank was waited for in vain.
  virtual Status CheckDone() const { return OkStatus(); }

 protected:
  // Returns once all ranks have called it, or with Abort's status.
  Status Barrier();

 private:
  // The devices' part of Reset.
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
