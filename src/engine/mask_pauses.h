// Names whose constrained samples sit out steps, since their masks have taken too much of the steps' time. Layer: engine.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>

namespace coppice {

// Thread-compatible. Names are those of Request::share_of.
class MaskPauses {
 public:
  using Clock = std::chrono::steady_clock;

  void Add(std::string_view share_of, Clock::time_point until) {
    const auto [place, is_new] = until_.try_emplace(std::string(share_of), until);
    if (!is_new && place->second < until) place->second = until;
  }
  // Lets those go that are over by `now`.
  void End(Clock::time_point now) {
    std::erase_if(until_, [&](const auto& pause) { return pause.second <= now; });
  }
  void Clear() { until_.clear(); }
  bool empty() const { return until_.empty(); }
  bool Has(std::string_view share_of) const { return until_.contains(share_of); }

 private:
  std::map<std::string, Clock::time_point, std::less<>> until_;
};

}  // namespace coppice
