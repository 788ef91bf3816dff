// Where the time of a step goes, part by part. Layer: runner.
#pragma once

#include <chrono>

namespace coppice {

// Adds the time since the last lap to a counter.
class LapTimer {
 public:
  void Lap(double* seconds) {
    const auto now = std::chrono::steady_clock::now();
    *seconds += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace coppice
