// Beams on their way through the engine: what a step's selections mean for the sequences, pages and events of requests that search
// with beams. A beam that is not gone on with gives up its branch, and one that has two children is forked (KvCache::Fork): whole
// pages are shared, the open one is copied once for each further child. beam_search.h decides which beams go on.
// Layer: engine. docs/engine.md, "Beam search".
#pragma once

#include <vector>

#include "coppice/engine/engine.h"
#include "engine/beam_search.h"
#include "engine/request_state.h"
#include "engine/scheduled_batch.h"
#include "engine/scheduler.h"
#include "engine/step_events.h"
#include "runner/runner.h"

namespace coppice {

// Thread-compatible.
class Beams {
 public:
  // All outlive it.
  Beams(Scheduler* scheduler, StepEvents* events, EngineMetrics* totals)
      : scheduler_(*scheduler), events_(*events), totals_(*totals) {}

  // Takes over what a step's selections gave, behind all else of it: its KV is computed and published. Requests whose beams have
  // all drawn take their next step, or end. Those of which a row held no distribution are returned: they are to be ended.
  std::vector<RequestState*> Commit(const ScheduledBatch& batch, const StepResult& result);

 private:
  void Add(const ScheduledBatch& batch, const StepResult& result, size_t selection);
  void Advance(RequestState* request);
  // Says what the search found.
  void End(RequestState* request);

  Scheduler& scheduler_;
  StepEvents& events_;
  EngineMetrics& totals_;
  std::vector<BeamSearch::Candidate> candidates_;
  std::vector<bool> goes_on_;  // by beam
};

}  // namespace coppice
