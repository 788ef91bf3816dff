// A mutex that threads enter in the order of their arrival: a thread that locks it in a loop cannot starve another.
// Layer: engine.
#pragma once

#include <mutex>

namespace coppice {

// A Lockable for std::lock_guard. With two threads the order is strict; with more, those that wait compete for the next turn.
class FairMutex {
 public:
  void lock() {
    const std::lock_guard next(next_);
    inside_.lock();
  }
  void unlock() { inside_.unlock(); }

 private:
  std::mutex next_, inside_;
};

}  // namespace coppice
