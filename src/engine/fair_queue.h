// The order of requests that wait: start-time fair queueing (Goyal, Vin and Cheng 1996). Each name that requests have
// (Request::share_of) is a flow, and tokens are what flows share; a flow without requests saves nothing up. Layer: engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

namespace coppice {

// Thread-compatible.
class FairQueue {
 public:
  // The virtual start of a request of `flow` that takes up to `tokens`: lower ones come first. Those of one flow increase.
  int64_t Join(const std::string& flow, int64_t tokens) {
    if (ends_.size() > kMostFlows) std::erase_if(ends_, [&](const auto& entry) { return entry.second <= now_; });
    int64_t& end = ends_[flow];
    const int64_t virtual_start = std::max(now_, end);
    end = virtual_start + tokens;
    return virtual_start;
  }
  // The request with that virtual start is served.
  void Serve(int64_t virtual_start) { now_ = std::max(now_, virtual_start); }

 private:
  static constexpr size_t kMostFlows = 1024;  // before those that owe nothing are forgotten

  int64_t now_ = 0;                      // the virtual time: the latest start that was served
  std::map<std::string, int64_t> ends_;  // by flow, when what it has asked for so far is done
};

}  // namespace coppice
