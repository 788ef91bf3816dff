// The commit of a computed step: tokens are added to samples, ends found, samples of a computed prompt begun, pages published to
// the tree, events written. Also the other ends of samples: cancelled, late, failed.
// Layer: engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/beams.h"
#include "engine/drafts.h"
#include "engine/kept_scores.h"
#include "engine/metrics.h"
#include "engine/prefixes.h"
#include "engine/scheduled_batch.h"
#include "engine/scheduler.h"
#include "engine/step_builder.h"
#include "engine/step_events.h"
#include "runner/runner.h"

namespace coppice {

// Thread-compatible.
class Committer {
 public:
  struct Parts {  // all outlive the committer
    KvCache* cache = nullptr;
    Scheduler* scheduler = nullptr;
    StepBuilder* steps = nullptr;
    Prefixes* prefixes = nullptr;
    const Drafts* drafts = nullptr;
    StepEvents* events = nullptr;
    EngineMetrics* totals = nullptr;
    int32_t max_context = 0;
  };
  explicit Committer(const Parts& parts)
      : cache_(*parts.cache),
        scheduler_(*parts.scheduler),
        steps_(*parts.steps),
        prefixes_(*parts.prefixes),
        drafts_(*parts.drafts),
        events_(*parts.events),
        totals_(*parts.totals),
        beams_(parts.scheduler, parts.events, parts.totals),
        max_context_(parts.max_context) {}

  // Takes over what a step gave. Steps are committed in the order of their launches.
  void Commit(const ScheduledBatch& batch, const StepResult& result);
  // Ends a sequence that is not finished, or takes it out of the engine where its end is written.
  void EndSample(Sequence* sequence, FinishReason reason, const Status& status);
  // Writes the last event of a sequence that has not ended.
  void WriteEnd(Sequence* sequence, FinishReason reason, const Status& status);
  // Ends every unfinished sequence of a request.
  void EndRequest(RequestState* request, FinishReason reason, const Status& status);
  // Ends the requests of a step with kError.
  void FailBatch(const ScheduledBatch& batch, const Status& status);

 private:
  // KV of the sequence before kv index `computed` is there, and shareable page by page while the sequence runs.
  void MarkComputed(Sequence* sequence, int32_t computed);
  void MarkAndPublish(Sequence* sequence, int32_t computed);
  // Adds what the step's plan spared the sequence.
  void CountReads(const Sequence& sequence) const {
    if (result_.stats.branch_reads.empty() || sequence.branch == kNoBranch) return;
    const BranchReads& reads = result_.stats.branch_reads[static_cast<size_t>(sequence.branch)];
    if (reads.sharers == 0) return;
    sequence.request->shared_reads.Add(
        {.kv_bytes_not_read = reads.kv_bytes_not_read, .tokens = reads.tokens, .sharers = reads.sharers});
  }
  // Takes over the log-probabilities that are wanted of the prompt.
  void CommitScores(const ScheduledBatch::Entry& entry);
  // Takes over the drafts with which the model agrees, and the token that it says next. False if the sequence ends there.
  bool CommitDrafts(const ScheduledBatch::Entry& entry);
  void BeginSamples(const ScheduledBatch::Entry& entry);
  // The samples whose first tokens the step drew.
  void BeginDrawn(const ScheduledBatch::Entry& entry);
  // Adds what draw number `index` of the step gave to a sequence and says so; true if the sequence goes on.
  bool Accept(Sequence* sequence, int32_t index);
  // Draw `index` gave none: why the sample ends.
  void EndWithoutToken(const Sequence& sequence, int32_t index, Emissions::Item* item);
  // Whether the sequence ends with the item's token, its last one, and what text it adds where stop strings are looked for.
  std::optional<FinishReason> EndOf(const Sequence& sequence, Emissions::Item* item);
  static TextStream& StreamOf(const Sequence& sequence) { return sequence.request->listener->texts[sequence.index]; }

  KvCache& cache_;
  Scheduler& scheduler_;
  StepBuilder& steps_;
  Prefixes& prefixes_;
  const Drafts& drafts_;
  StepEvents& events_;
  EngineMetrics& totals_;
  Beams beams_;
  const int32_t max_context_;
  const ScheduledBatch* batch_ = nullptr;  // the step at hand
  StepResult result_;
  std::vector<Sequence*> running_samples_;
  std::vector<int32_t> accepted_;  // drafts of a sequence
  KeptScores kept_scores_;
};

}  // namespace coppice
