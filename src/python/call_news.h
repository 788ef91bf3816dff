// The events of a call's requests, gathered until a caller takes them: pieces of samples, and when they are announced.
// Layer: python.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "openai/generation.h"

namespace coppice::python {

// A sample's output since the last Take.
struct Piece {
  openai::Sample sample;
  int32_t cached_tokens = 0;  // of the prompt
  int64_t weight_version = 0;
  Status status;  // why, for FinishReason::kError
};

// Thread-safe. Output of a step during Take may come in two parts; a caller is woken once a step.
class CallNews {
 public:
  using Place = std::pair<int32_t, int32_t>;  // request and sample
  using Pieces = std::map<Place, Piece>;

  // kWhole: news are there when all requests are done; kPieces: once after each step.
  enum class Delivery : uint8_t { kWhole, kPieces };

  // Of `requests` requests; `keeps`: HasEnded is asked.
  CallNews(Delivery delivery, size_t requests, bool keeps) : delivery_(delivery), keeps_(keeps), unfinished_(requests) {}
  ~CallNews();
  CallNews(const CallNews&) = delete;
  CallNews& operator=(const CallNews&) = delete;

  // Whether Announce is due when all events of the step are there.
  bool Add(int32_t request, const StreamEvent& event);
  void Announce();

  // Whether there are news, after `timeout` at most. They stay until Take.
  bool Wait(std::chrono::milliseconds timeout);
  // The output since the last call; with kWhole nothing before all requests are done.
  Pieces Take();
  // All requests have ended, and their output was taken.
  bool finished() const;
  // Of a sample that is kept.
  bool HasEnded(const Place& place) const;
  // A descriptor that can be read while there are news (eventfd(2)); the object's own. RESOURCE_EXHAUSTED: the process has no more.
  Result<int> Descriptor();

 private:
  // Once true, it stays so until Take: an event between Wait and Take hides no news.
  bool has_news() const { return (announced_ && !pieces_.empty()) || (unfinished_ == 0 && !announcing_); }
  void Wake() const;

  const Delivery delivery_;
  const bool keeps_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable news_;
  Pieces pieces_;
  size_t unfinished_;        // requests
  bool announcing_ = false;  // Announce is to come
  bool announced_ = false;   // it came to pieces that are not taken yet
  std::set<Place> ended_;    // samples that are kept
  int descriptor_ = -1;
};

}  // namespace coppice::python
