// Announcements to be made once the events of a step are all there. Layer: python.
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace coppice::python {

// Thread-safe.
class StepAnnouncements {
 public:
  // `announce` is called by the next MakeAll; it throws nothing.
  void Add(std::function<void()> announce) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(announce));
  }
  void MakeAll() {
    std::vector<std::function<void()>> made;
    {
      const std::lock_guard lock(mutex_);
      made.swap(waiting_);
    }
    for (const std::function<void()>& announce : made) announce();
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> waiting_;
};

}  // namespace coppice::python
