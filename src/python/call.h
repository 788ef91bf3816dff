// Requests that a caller submitted together, and what the engine said of them since it was last asked. Knows no Python: a caller
// waits without the GIL, and takes all that has come at once. Layer: python.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "openai/generation.h"
#include "python/stepped_engine.h"

namespace coppice::python {

// What came of one sample.
struct Piece {
  openai::Sample sample;
  int32_t cached_tokens = 0;  // of the prompt
  int64_t weight_version = 0;
  Status status;  // why, for FinishReason::kError
};

// Thread-safe. What has not finished when it goes is cancelled.
class Call {
 public:
  using Pieces = std::map<std::pair<int32_t, int32_t>, Piece>;  // by request and sample

  // kWhole: news are there when all requests are done; kPieces: after each step.
  enum class Delivery : uint8_t { kWhole, kPieces };

  // Submits all of `requests`, or none: an error names the place in the list.
  static Result<std::unique_ptr<Call>> Submit(std::shared_ptr<SteppedEngine> engine, std::vector<Request> requests,
                                              Delivery delivery);
  ~Call();

  // Whether there are news, after `timeout` at most. FAILED_PRECONDITION: the engine was closed, or is another process's.
  Result<bool> Wait(std::chrono::milliseconds timeout);
  // What has come since the last call; with kWhole nothing before everything has.
  Pieces Take();
  // All requests have ended, and what they said was taken.
  bool finished() const;
  // What runs ends with the next step: FinishReason::kCancelled.
  void Cancel();
  // A descriptor that can be read while there are news (eventfd(2)), for loops that wait for many things; the call's own.
  // RESOURCE_EXHAUSTED: the process has no more.
  Result<int> Descriptor();

 private:
  // Events may come after the call has gone.
  struct Gathered {
    ~Gathered();
    void Add(int32_t request, const StreamEvent& event);
    bool has_news() const { return unfinished == 0 || (delivery == Delivery::kPieces && !pieces.empty()); }
    void Announce() const;

    Delivery delivery = Delivery::kWhole;
    mutable std::mutex mutex;
    std::condition_variable news;
    Pieces pieces;
    size_t unfinished = 0;  // requests
    int descriptor = -1;
  };

  Call(std::shared_ptr<SteppedEngine> engine, Delivery delivery);

  const std::shared_ptr<SteppedEngine> engine_;
  const std::shared_ptr<Gathered> gathered_ = std::make_shared<Gathered>();
  std::vector<RequestId> ids_;
};

}  // namespace coppice::python
