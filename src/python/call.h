// Requests that a caller submitted together, and what the engine said of them since it was last asked. Knows no Python: a caller
// waits without the GIL, and takes all that has come at once. Layer: python.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "openai/generation.h"
#include "openai/kept_request.h"
#include "python/stepped_engine.h"

namespace coppice::python {

// What came of one sample.
struct Piece {
  openai::Sample sample;
  int32_t cached_tokens = 0;  // of the prompt
  int64_t weight_version = 0;
  Status status;  // why, for FinishReason::kError
};

// The samples of a request that was submitted to be kept; they are let go with this. Thread-safe.
class KeptSamples {
 public:
  KeptSamples(std::shared_ptr<SteppedEngine> engine, std::shared_ptr<openai::KeptRequest> request)
      : engine_(std::move(engine)), request_(std::move(request)) {}
  ~KeptSamples() { (void)Release(); }
  KeptSamples(const KeptSamples&) = delete;
  KeptSamples& operator=(const KeptSamples&) = delete;

  const std::shared_ptr<SteppedEngine>& engine() const { return engine_; }
  openai::KeptRequest& request() const { return *request_; }
  // Engine::Release.
  Status Release() {
    return engine_->With([&](Engine& engine) { return engine.Release(request_->id()); });
  }

 private:
  const std::shared_ptr<SteppedEngine> engine_;
  const std::shared_ptr<openai::KeptRequest> request_;
};

// One of them.
struct KeptSample {
  std::shared_ptr<KeptSamples> of;
  int32_t index = 0;

  SampleId id() const { return of->request().sample(index); }
};

// Thread-safe. What has not finished when it goes is cancelled; of requests that are kept, such samples are pruned.
class Call {
 public:
  using Pieces = std::map<std::pair<int32_t, int32_t>, Piece>;  // by request and sample

  // kWhole: news are there when all requests are done; kPieces: once after each step.
  enum class Delivery : uint8_t { kWhole, kPieces };

  // Submits all of `requests`, or none: an error names the place in the list. `keep`: their samples are kept.
  static Result<std::unique_ptr<Call>> Submit(std::shared_ptr<SteppedEngine> engine, std::vector<Request> requests,
                                              Delivery delivery, bool keep = false);
  // Begins children of a sample, or lets one go on behind `tokens`: KeptRequest::Fork and Extend. The extension of a sample that
  // had not ended brings an empty piece, since the call that began the sample takes what comes.
  static Result<std::unique_ptr<Call>> Fork(const KeptSample& sample, const ForkOptions& options, Delivery delivery);
  static Result<std::unique_ptr<Call>> Extend(const KeptSample& sample, std::span<const int32_t> tokens, Delivery delivery);
  ~Call();

  // Whether there are news, after `timeout` at most. FAILED_PRECONDITION: the engine was closed, or is another process's.
  Result<bool> Wait(std::chrono::milliseconds timeout);
  // What has come since the last call; with kWhole nothing before everything has.
  Pieces Take();
  // The sample of a piece, if it is kept.
  std::optional<KeptSample> SampleOf(const std::pair<int32_t, int32_t>& place) const;
  // All requests have ended, and what they said was taken.
  bool finished() const;
  // What runs ends with the next step: FinishReason::kCancelled.
  void Cancel();
  // A descriptor that can be read while there are news (eventfd(2)), for loops that wait for many things; the call's own.
  // RESOURCE_EXHAUSTED: the process has no more.
  Result<int> Descriptor();

 private:
  // Events may come after the call has gone. What a step brings while Take is called may come in two parts; a caller is woken once.
  struct Gathered {
    ~Gathered();
    // Whether news came that are to be announced when the step's events are all there.
    bool Add(int32_t request, const StreamEvent& event);
    void Announce();
    bool has_news() const { return unfinished == 0 ? !announcing : announced && !pieces.empty(); }
    void Wake() const;

    Delivery delivery = Delivery::kWhole;
    mutable std::mutex mutex;  // guards what follows
    std::condition_variable news;
    Pieces pieces;
    size_t unfinished = 0;    // requests
    bool announcing = false;  // Announce is to come
    bool announced = false;   // it came, and nothing was taken since
    bool keeps = false;
    std::set<std::pair<int32_t, int32_t>> ended;  // samples that are kept, by request and sample
    int descriptor = -1;
  };

  // Of a request that is kept, the samples that the call began.
  struct Kept {
    std::shared_ptr<KeptSamples> request;
    std::vector<SampleId> samples;
  };

  Call(std::shared_ptr<SteppedEngine> engine, Delivery delivery);
  openai::KeptRequest::OnEvent Gather(size_t request) const;
  std::vector<SampleId> Unfinished(size_t request) const;  // of one that is kept
  // Of samples that are kept; it awaits nothing of them, and its end leaves them as they are.
  static std::unique_ptr<Call> Of(const KeptSample& sample, std::vector<SampleId> samples, Delivery delivery);
  static std::unique_ptr<Call> Listening(const KeptSample& sample, openai::KeptRequest::Group* group, Delivery delivery);

  const std::shared_ptr<SteppedEngine> engine_;
  const std::shared_ptr<Gathered> gathered_ = std::make_shared<Gathered>();
  std::vector<RequestId> ids_;
  std::vector<Kept> kept_;  // by request; empty: they are not kept
};

}  // namespace coppice::python
