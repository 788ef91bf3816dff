// The requests of one call on their way through an engine, whatever the call is for: puts them to it, counts what their events say,
// ends the rest where one fails or none is wanted any more, and reports when all have ended. Makes no answers. Layer: openai.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "openai/kept_request.h"
#include "openai/response.h"

namespace coppice::openai {

// Counts and states that a request's events report, beside its output.
struct RequestCounts {
  int32_t cached_tokens = 0;     // of the prompt
  int64_t generated_tokens = 0;  // of all its samples
  SharedReads shared_reads;      // once it is done
  bool begun = false;            // StreamEvent::begun
  bool cancelled = false;        // a sample was
  bool done = false;             // all events came

  TokenUsage usage(int64_t prompt_tokens) const {
    return {.prompt = prompt_tokens, .cached = cached_tokens, .completion = generated_tokens, .shared_reads = shared_reads};
  }
};

// Derived classes take the events. Held by its requests for as long as they are in the engine, which outlives it.
// Thread-safe.
class RequestDriver : public std::enable_shared_from_this<RequestDriver> {
 public:
  explicit RequestDriver(Engine* engine) : engine_(*engine) {}
  RequestDriver(const RequestDriver&) = delete;
  virtual ~RequestDriver() = default;

  // Ends the rest: samples that have not ended do so with kCancelled. After the end it does nothing.
  void Cancel();
  // Another than the client ends it: as Cancel, but the answer has what has come until then, or is the error `why`.
  void Abort(Status why);
  // Likewise one of its requests, by its place in the order of submission; a place that none has: nothing happens.
  void AbortRequest(size_t request);

 protected:
  // `submit` submits the first requests, with the lock held: no event is taken before it returns. Where all of them were refused,
  // OnEnd is called too.
  void Begin(const std::function<void()>& submit);

  // State that these functions read and change is guarded by the lock, which is held in `submit`, OnEvent and OnEnd.
  [[nodiscard]] std::unique_lock<std::mutex> Lock() const { return std::unique_lock(mutex_); }

  // One event at a time, already counted; those of a request in order. `request`: its place in the order of submission. May submit
  // more.
  virtual void OnEvent(size_t request, const StreamEvent& event) = 0;
  // No request is in the engine. Once; where it threw, again with the error that the engine makes of it.
  virtual void OnEnd() = 0;

  // Takes samples of a kept request, which a fork or an extension began, as a request of this call. `begin` is called with the lock
  // held, before their events. Without the lock.
  void TakeOver(KeptRequest& kept, KeptRequest::Group* group, const std::function<void()>& begin);

  // The rest of this with the lock held. False: the engine refuses it, as failure() says, or the call has failed or was
  // cancelled before. `kept`: its samples are kept, and this is how they are forked; where they are not wanted any more, or one
  // fails, they are pruned.
  bool Submit(Request request, std::shared_ptr<KeptRequest>* kept = nullptr);
  // A sample is not wanted any more: Engine::Prune.
  void Prune(size_t request, int32_t index) { (void)engine_.Prune({.request = submitted_[request].id, .index = index}); }
  // While it is open the call does not end, though all requests may have: more may follow. Closing it may end the call.
  void SetOpen(bool open);
  // The call has failed, and what the others say is of no use.
  void Fail(Status status);

  const Status& failure() const { return failure_; }  // the first one: of a sample, of Submit, or of Fail
  bool refused() const { return refused_; }           // it is that of Submit
  bool cancelled() const { return cancelled_; }       // by Cancel
  bool ended() const { return ended_; }
  const std::vector<RequestCounts>& counts() const { return counts_; }  // by request, of those that the engine took
  bool begun() const;                                                   // one of them
  // Of all of them together, with prompts of so many tokens.
  TokenUsage usage(int64_t prompt_tokens) const;

 private:
  struct Submitted {
    RequestId id{};
    std::vector<SampleId> kept_samples;  // those of a kept request that are this call's; empty: all of a request that is not kept
  };

  void Take(size_t request, const StreamEvent& event);
  void CancelSubmitted();
  void CancelRequest(size_t request);
  void EndIfDone();

  Engine& engine_;
  mutable std::mutex mutex_;
  std::vector<Submitted> submitted_;  // by request, as counts_
  std::vector<RequestCounts> counts_;
  size_t num_done_ = 0;
  Status failure_;
  bool refused_ = false, cancelled_ = false, open_ = false, ended_ = false;
};

}  // namespace coppice::openai
