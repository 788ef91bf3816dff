// Requests that a caller submitted together, and their output since it was last taken. Knows no Python: a caller waits without the
// GIL, and takes all that has come at once. Layer: python.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "openai/kept_request.h"
#include "python/call_news.h"
#include "python/stepped_engine.h"

namespace coppice::python {

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

// Thread-safe. Unfinished requests are cancelled with the call; of requests that are kept, unfinished samples are pruned.
class Call {
 public:
  // Submits all of `requests`, or none: an error names the place in the list. `keep`: their samples are kept.
  static Result<std::unique_ptr<Call>> Submit(std::shared_ptr<SteppedEngine> engine, std::vector<Request> requests,
                                              CallNews::Delivery delivery, bool keep = false);
  // Begins children of a sample, or lets one go on behind `tokens`: KeptRequest::Fork and Extend. The extension of a sample that
  // had not ended brings an empty piece, since the call that began the sample takes what comes.
  static Result<std::unique_ptr<Call>> Fork(const KeptSample& sample, const ForkOptions& options, CallNews::Delivery delivery);
  static Result<std::unique_ptr<Call>> Extend(const KeptSample& sample, std::span<const int32_t> tokens,
                                              CallNews::Delivery delivery);
  ~Call();

  // As of CallNews. FAILED_PRECONDITION: the engine was closed and what is left never comes, or it is another process's.
  Result<bool> Wait(std::chrono::milliseconds timeout);
  CallNews::Pieces Take() { return news_->Take(); }
  Result<bool> Finished() const;
  Result<int> Descriptor();
  // The sample of a piece, if it is kept.
  std::optional<KeptSample> SampleOf(const CallNews::Place& place) const;
  // Unfinished samples end with the next step: FinishReason::kCancelled. Nothing where Wait fails.
  void Cancel();

 private:
  // Of a request that is kept, the samples that the call began.
  struct Kept {
    std::shared_ptr<KeptSamples> request;
    std::vector<SampleId> samples;
  };

  Call(std::shared_ptr<SteppedEngine> engine, std::shared_ptr<CallNews> news)
      : engine_(std::move(engine)), news_(std::move(news)) {}
  openai::KeptRequest::OnEvent Gather(size_t request) const;
  std::vector<SampleId> Unfinished(size_t request) const;  // of one that is kept
  // Of samples that are kept; the call's end leaves them as they are.
  static std::unique_ptr<Call> Of(const KeptSample& sample, std::vector<SampleId> samples, std::shared_ptr<CallNews> news);
  static std::unique_ptr<Call> Listening(const KeptSample& sample, openai::KeptRequest::Group* group, CallNews::Delivery delivery);

  const std::shared_ptr<SteppedEngine> engine_;
  const std::shared_ptr<CallNews> news_;  // events may come after the call has gone
  std::vector<RequestId> ids_;
  std::vector<Kept> kept_;  // by request; empty: they are not kept
};

}  // namespace coppice::python
