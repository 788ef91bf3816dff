// The ranks of one model as threads of this process, and what they say to each other. Layer: runner.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "coppice/core/executor.h"
#include "coppice/core/status.h"
#include "core/cache_line.h"
#include "core/communicator.h"
#include "core/exhaustion.h"

namespace coppice {

// Rank 0 is the thread that calls Run; the others are threads of the group. Thread-compatible.
class RankGroup {
 public:
  // Ranks that speak through `group`. RESOURCE_EXHAUSTED if the system does not start so many threads.
  static Result<std::unique_ptr<RankGroup>> Create(std::unique_ptr<CommunicatorGroup> group);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int size() const { return static_cast<int>(communicators_.size()); }
  Communicator& communicator(int rank) { return *communicators_[rank]; }

  // Calls body(rank), which returns a Status, once for each rank on its thread, and returns when all have returned. Where a rank
  // fails, the others' calls to their communicators fail too, and its status is the result. With one rank it is body(0).
  template <class Body>
  Status Run(Body&& body) {
    if (size() == 1) return body(0);
    return RunOnAll([&](int64_t rank, int) {
      const Status status = CatchExhaustion("running a rank", [&]() -> Status { return body(static_cast<int>(rank)); });
      if (!status.ok()) group_->Abort(status);
    });
  }
  // CommunicatorGroup::CheckDone.
  Status CheckDone() const { return group_->CheckDone(); }

 private:
  explicit RankGroup(std::unique_ptr<CommunicatorGroup> group);
  Status RunOnAll(TaskRef task);
  void RunRank(int rank);
  void Stop();

  const std::unique_ptr<CommunicatorGroup> group_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  TaskRef task_;  // written while no rank runs
  alignas(kCacheLine) std::atomic<uint32_t> runs_{0};
  alignas(kCacheLine) std::atomic<int> left_{0};  // ranks beside the first that have not returned
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;  // of ranks 1, 2, ...
};

}  // namespace coppice
