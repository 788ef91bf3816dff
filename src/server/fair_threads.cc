#include "server/fair_threads.h"

#include <algorithm>
#include <utility>

namespace coppice::server {
namespace {

constexpr int64_t kCostOfWork = 4096;  // of any request, beside its bytes: what parsing and submitting a short one takes

}  // namespace

FairThreads::FairThreads(int32_t threads) : half_(std::max(1, threads / 2)) {
  for (int32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

void FairThreads::Join() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  threads_.clear();
}

void FairThreads::Post(const std::string& share, int64_t bytes, Work work) {
  {
    const std::lock_guard lock(mutex_);
    shares_[share].waiting.push_back({turns_.Join(share, kCostOfWork + bytes), bytes, std::move(work)});
  }
  changed_.notify_one();
}

bool FairThreads::MayRun(const Share& share) const {
  if (share.waiting.empty() || share.running >= half_) return false;
  return share.waiting.front().bytes < kLargeBytes || (share.running_large == 0 && running_large_ < half_);
}

FairThreads::Shares::iterator FairThreads::Next() {
  auto next = shares_.end();
  for (auto it = shares_.begin(); it != shares_.end(); ++it) {
    if (!MayRun(it->second)) continue;
    if (next == shares_.end() || it->second.waiting.front().turn < next->second.waiting.front().turn) next = it;
  }
  return next;
}

void FairThreads::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto next = Next();
    if (next == shares_.end()) {
      if (ending_ && shares_.empty()) return;
      changed_.wait(lock);
      continue;
    }
    Share& share = next->second;  // stays where it is while it runs
    Job job = std::move(share.waiting.front());
    share.waiting.pop_front();
    turns_.Serve(job.turn);
    const int32_t large = job.bytes >= kLargeBytes ? 1 : 0;
    ++share.running;
    share.running_large += large;
    running_large_ += large;
    if (Next() != shares_.end()) changed_.notify_one();  // what this one's share or a large one was in the way of
    lock.unlock();
    job.work();
    job.work = nullptr;  // what it holds is given back before others begin
    lock.lock();
    --share.running;
    share.running_large -= large;
    running_large_ -= large;
    if (share.running == 0 && share.waiting.empty()) shares_.erase(next);
    if (ending_ && shares_.empty()) changed_.notify_all();
  }
}

}  // namespace coppice::server
