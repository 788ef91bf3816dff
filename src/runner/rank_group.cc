#include "runner/rank_group.h"

#include <string>
#include <system_error>
#include <utility>

#include "core/await_change.h"

namespace coppice {

Result<std::unique_ptr<RankGroup>> RankGroup::Create(std::unique_ptr<CommunicatorGroup> group) {
  const int size = group->size();
  try {
    return std::unique_ptr<RankGroup>(new RankGroup(std::move(group)));
  } catch (const std::system_error& error) {
    return RefusedBySystem("starting " + std::to_string(size) + " ranks", error.code());
  }
}

RankGroup::RankGroup(std::unique_ptr<CommunicatorGroup> group) : group_(std::move(group)) {
  for (int rank = 0; rank < group_->size(); ++rank) {
    communicators_.push_back(group_->size() == 1 ? MakeSingleRank() : group_->MakeRank(rank));
  }
  threads_.reserve(communicators_.size());
  try {
    for (int rank = 1; rank < size(); ++rank) threads_.emplace_back([this, rank] { RunRank(rank); });
  } catch (...) {
    Stop();
    throw;
  }
}

RankGroup::~RankGroup() { Stop(); }

void RankGroup::Stop() {
  stop_.store(true, std::memory_order_relaxed);
  runs_.fetch_add(1, std::memory_order_release);
  runs_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status RankGroup::RunOnAll(TaskRef task) {
  task_ = task;
  left_.store(size() - 1, std::memory_order_relaxed);
  runs_.fetch_add(1, std::memory_order_release);  // publishes both
  runs_.notify_all();
  task.Run(0, 0);
  for (int left; (left = left_.load(std::memory_order_acquire)) != 0;) AwaitChange(left_, left);
  Status status = group_->status();
  if (!status.ok()) group_->Reset();
  return status;
}

void RankGroup::RunRank(int rank) {
  group_->EnterThread(rank);
  for (uint32_t seen = 0;;) {
    seen = AwaitChange(runs_, seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    task_.Run(rank, 0);
    if (left_.fetch_sub(1, std::memory_order_release) == 1) left_.notify_one();
  }
}

}  // namespace coppice
