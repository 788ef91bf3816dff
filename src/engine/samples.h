// Callers' operations on single samples: fork, extend, prune, and let kept ones go (Engine::Fork and its neighbours). Between
// steps: what it makes goes on in the queue or beside what it came from, as the scheduler finds room. Layer: engine.
// docs/engine.md, "Trees that users grow"; trees of samples: Hydragen section 3.3.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coppice/engine/engine.h"
#include "engine/commit.h"
#include "engine/request_state.h"
#include "engine/scheduler.h"
#include "engine/step_events.h"
#include "engine/validate_request.h"

namespace coppice {

// Thread-compatible. REQUIRES of all but Describe: no step is under way, and the request is known to the scheduler.
class Samples {
 public:
  struct Parts {  // all outlive the samples
    Scheduler* scheduler = nullptr;
    Committer* committer = nullptr;
    StepEvents* events = nullptr;
    const Tokenizer* tokenizer = nullptr;  // may be null
    const RequestLimits* limits = nullptr;
  };
  explicit Samples(const Parts& parts)
      : scheduler_(*parts.scheduler),
        committer_(*parts.committer),
        events_(*parts.events),
        tokenizer_(parts.tokenizer),
        limits_(*parts.limits) {}

  // As the engine's; the copies that children need wait in the cache.
  Result<std::vector<SampleId>> Fork(RequestState* request, int32_t index, const ForkOptions& options);
  Result<Extension> Extend(RequestState* request, int32_t index, std::span<const int32_t> tokens);
  void Prune(RequestState* request, int32_t index);
  void Release(RequestState* request);
  Result<SampleInfo> Describe(RequestState* request, int32_t index) const;

 private:
  // A sample that can be forked and extended.
  static Result<Sequence*> Find(RequestState* request, int32_t index);
  // The constraint's state behind the first `kept` tokens of a sample; null without a constraint.
  static Result<std::shared_ptr<SharedConstraint>> ConstraintAfter(const Sequence& sequence, int32_t kept);
  // That behind `tokens`, which follow all that the sample has.
  Result<std::shared_ptr<SharedConstraint>> ConstraintAfter(const Sequence& sequence, std::span<const int32_t> tokens) const;
  // A text stream that has read tokens [begin, end) of a sample.
  TextStream TextAfter(const Sequence& sequence, int32_t begin, int32_t end) const;

  Scheduler& scheduler_;
  Committer& committer_;
  StepEvents& events_;
  const Tokenizer* const tokenizer_;
  const RequestLimits& limits_;
};

}  // namespace coppice
