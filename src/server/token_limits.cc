#include "server/token_limits.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace coppice::server {

TokenLimits::TokenLimits(TokenLimit others, std::map<std::string, TokenLimit> of_keys)
    : others_(others), of_keys_(std::move(of_keys)) {}

const TokenLimit& TokenLimits::Of(const std::string& key) const {
  const auto found = of_keys_.find(key);
  return found == of_keys_.end() ? others_ : found->second;
}

int64_t TokenLimits::MostOfRequest(const std::string& key) const {
  const TokenLimit& limit = Of(key);
  if (limit.per_request == 0 || limit.per_minute == 0) return limit.per_request + limit.per_minute;
  return std::min(limit.per_request, limit.per_minute);
}

TokenLimits::Taken TokenLimits::Take(const std::string& key, int64_t tokens, int64_t reserve, Clock::time_point now) {
  const auto per_minute = static_cast<double>(Of(key).per_minute);
  if (per_minute == 0) return {};
  const double per_second = per_minute / 60;
  const std::lock_guard lock(mutex_);
  Bucket& bucket = buckets_.try_emplace(key, Bucket{per_minute, now}).first->second;
  const double seconds = std::chrono::duration<double>(now - bucket.time).count();
  if (seconds > 0) {
    bucket.level = std::min(per_minute, bucket.level + seconds * per_second);
    bucket.time = now;
  }
  const auto asked = static_cast<double>(tokens);
  const double missing = std::max(asked, std::min(per_minute, asked + static_cast<double>(reserve))) - bucket.level;
  if (missing > 0) {
    const auto wait = static_cast<int64_t>(std::ceil(missing / per_second));
    return {.ok = false, .left = static_cast<int64_t>(bucket.level), .wait_seconds = std::max<int64_t>(1, wait)};
  }
  bucket.level -= static_cast<double>(tokens);
  return {};
}

void TokenLimits::GiveBack(const std::string& key, int64_t tokens) {
  const auto per_minute = static_cast<double>(Of(key).per_minute);
  if (per_minute == 0 || tokens <= 0) return;
  const std::lock_guard lock(mutex_);
  Bucket& bucket = buckets_.at(key);
  bucket.level = std::min(per_minute, bucket.level + static_cast<double>(tokens));
}

}  // namespace coppice::server
