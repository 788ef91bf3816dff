#include "server/byte_budget.h"

namespace coppice::server {
namespace {

constexpr int64_t kFreePerHeld = 3;  // bytes that are to be left free for each that a share holds

}  // namespace

BytesTaken ByteBudget::Held::GrowTo(int64_t bytes) {
  if (bytes <= bytes_) return BytesTaken::kTaken;
  const BytesTaken taken = budget_->Take(share_, bytes - bytes_);
  if (taken == BytesTaken::kTaken) bytes_ = bytes;
  return taken;
}

BytesTaken ByteBudget::Take(const std::string& share, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = shares_.find(share);
  const int64_t of_share = found == shares_.end() ? 0 : found->second;
  if (kFreePerHeld * (of_share + bytes) > limit_ - held_ - bytes)
    return of_share > 0 ? BytesTaken::kShareIsFull : BytesTaken::kAllIsFull;
  shares_[share] += bytes;
  held_ += bytes;
  return BytesTaken::kTaken;
}

void ByteBudget::GiveBack(const std::string& share, int64_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  held_ -= bytes;
  const auto found = shares_.find(share);
  if ((found->second -= bytes) == 0) shares_.erase(found);
}

}  // namespace coppice::server
