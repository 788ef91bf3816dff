#include "server/unwritten_answers.h"

#include <algorithm>
#include <new>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace coppice::server {

UnwrittenAnswers::Share::Share(std::shared_ptr<UnwrittenAnswers> all, std::function<void()> give_up)
    : all_(std::move(all)), give_up_(std::move(give_up)) {
  const std::lock_guard lock(all_->mutex_);
  all_->shares_.insert(this);
}

UnwrittenAnswers::Share::~Share() {
  Hold(0);
  const std::lock_guard lock(all_->mutex_);
  all_->shares_.erase(this);
}

void UnwrittenAnswers::Share::SetOwner(std::string owner) {
  const std::lock_guard lock(all_->mutex_);
  owner_ = std::move(owner);
}

void UnwrittenAnswers::Share::Hold(int64_t bytes) { all_->bytes_ += bytes - bytes_.exchange(bytes); }

void UnwrittenAnswers::MakeRoom() {
  if (max_bytes_ == 0 || bytes_ <= max_bytes_) return;
  const std::lock_guard lock(mutex_);
  try {
    while (bytes_ > max_bytes_) {
      Share* const share = LargestOfGreediest();
      if (!share) return;
      share->give_up_();
      share->Hold(0);
    }
  } catch (const std::bad_alloc&) {  // the next answer that grows tries again
  }
}

UnwrittenAnswers::Share* UnwrittenAnswers::LargestOfGreediest() const {
  std::unordered_map<std::string_view, int64_t> held;
  for (const Share* const share : shares_) held[share->owner_] += share->bytes_;
  const auto greediest = std::ranges::max_element(held, {}, [](const auto& owner) { return owner.second; });
  if (greediest == held.end() || greediest->second <= 0) return nullptr;
  Share* largest = nullptr;
  for (Share* const share : shares_) {
    if (share->owner_ == greediest->first && (!largest || share->bytes_ > largest->bytes_)) largest = share;
  }
  return largest;
}

}  // namespace coppice::server
