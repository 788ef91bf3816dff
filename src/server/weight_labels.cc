#include "server/weight_labels.h"

#include <algorithm>
#include <utility>

namespace coppice::server {

void WeightLabels::Set(std::string label) {
  const int64_t version = engine_.weight_version().number;
  const std::lock_guard lock(mutex_);
  if (set_.empty() || set_.back().number != version) set_.push_back({.number = version});
  set_.back().label = std::move(label);
  if (set_.size() > kMost) set_.pop_front();
}

std::string WeightLabels::Find(int64_t version) const {
  // Its tokens come before the call that updated the engine returns, and Set is called.
  const WeightVersion now = engine_.weight_version();
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(set_, version, &WeightVersion::number);
  if (found != set_.end()) return found->label;
  return now.number == version ? now.label : std::string();
}

std::string WeightLabels::Now() const {
  const int64_t version = engine_.weight_version().number;
  std::string label = Find(version);
  return label.empty() ? std::to_string(version) : label;
}

}  // namespace coppice::server
