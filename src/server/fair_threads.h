// Threads for work that may take long, such as parsing, tokenising and writing large answers, so that connections go on meanwhile.
// Shares (API keys or peers) take turns on them, and one share never has all of them. Knows no requests and no sockets.
// Layer: server.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/fair_queue.h"

namespace coppice::server {

// Thread-safe. A share has half of the threads at most. Of large work, which takes long and much memory (parsed JSON twenty times
// its text), a share does one piece at a time, and all together do so many that half of the threads are left.
class FairThreads {
 public:
  using Work = std::function<void()>;  // throws nothing

  static constexpr int64_t kLargeBytes = int64_t{1} << 20;  // work about so many bytes is large

  explicit FairThreads(int32_t threads);
  ~FairThreads() { Join(); }
  FairThreads(const FairThreads&) = delete;
  FairThreads& operator=(const FairThreads&) = delete;

  // `bytes`: of what the work is about, which its cost is in proportion to. Work of one share begins in the order in which it was
  // posted; between shares, whose turn it is follows from the bytes that each has asked for (FairQueue).
  void Post(const std::string& share, int64_t bytes, Work work);
  // Does what has been posted, and ends the threads. Nothing is posted afterwards.
  void Join();

 private:
  struct Job {
    int64_t turn, bytes;
    Work work;
  };
  struct Share {
    std::deque<Job> waiting;
    int32_t running = 0, running_large = 0;
  };
  using Shares = std::map<std::string, Share>;

  void Run();
  // The share whose first job is next and may run now; the end: none.
  Shares::iterator Next();
  bool MayRun(const Share& share) const;

  const int32_t half_;  // of the threads, one at least
  std::mutex mutex_;
  std::condition_variable changed_;
  FairQueue turns_;
  Shares shares_;  // those with a job that waits or runs
  int32_t running_large_ = 0;
  bool ending_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace coppice::server
