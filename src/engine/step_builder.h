// Writes batches: the one place where a step's edits, rows, draws and scores are laid out as the runner takes them. The scheduler
// decides which sequences run, the committer what a step gave; both call the builder. A sequence has a sampling slot of its
// branch's number. Layer: engine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache_step.h"
#include "cache/kv_cache.h"
#include "engine/request_state.h"
#include "engine/scheduled_batch.h"
#include "runner/runner.h"

namespace coppice {

// The life of a step: edits at any time, Begin, rows, Launch, Launched. Thread-compatible.
class StepBuilder {
 public:
  // `cache` outlives the builder.
  explicit StepBuilder(KvCache* cache) : cache_(*cache) {}

  // The next step. It stays valid until the step after it was launched and another one is begun.
  ScheduledBatch& next() { return *batch_; }
  // The step launched last, which may be under way. REQUIRES: it was.
  const ScheduledBatch& last() const { return batches_[(next_ + batches_.size() - 1) % batches_.size()]; }

  // ---- edits to KV and sampling slots, done before the next step's rows, whichever these are

  // The slot of a branch that a sequence was admitted to: its parameters and what it has generated so far.
  void SetSlot(const Sequence& sequence, BranchId branch);
  // The slot learns what the sequence has generated since `*acknowledged` tokens, where penalties look at it; of what is under way
  // the draw.
  void NotifySlot(const Sequence& sequence, BranchId branch, int32_t* acknowledged);
  void ForkSlot(BranchId from, BranchId to) {
    batch_->step.slot_edits.push_back({.kind = SlotEdit::Kind::kFork, .slot = to, .index = from});
  }
  void FreeSlot(BranchId branch) { batch_->step.slot_edits.push_back({.kind = SlotEdit::Kind::kFree, .slot = branch}); }
  // The KV of one token of a branch to the place of another.
  void Move(BranchId branch, int32_t from, int32_t to) {
    batch_->step.moves.push_back({.from = cache_.SlotOf(branch, from), .to = cache_.SlotOf(branch, to)});
  }

  // ---- rows, and what is wanted of them

  // Begins the next step anew: no rows. Its edits stay.
  void Begin();
  // The next step has no work any more. Its edits stay.
  void DropWork() {
    batch_->Clear();
    in_cache_ = {};
    beams_.clear();
  }
  // Rows for tokens of a branch that was grown past them, the first with kv index `begin`. Returns the last row.
  // REQUIRES: one call a branch and step.
  int32_t Rows(BranchId branch, int32_t begin, std::span<const int32_t> tokens);
  // `count` tokens of a running sequence from Sequence::launched on, and behind them the first `drafts` of its draft; the scores
  // that are wanted of its prompt, and draws where all is computed that is known.
  void Append(Sequence* sequence, int32_t count, int32_t drafts);
  // By a draft model: what comes behind the sequence's draft, whose last token (or the last known one) has the row.
  // `distribution`: Drafting's. Sequence::draft is linear.
  void DraftDraw(const Sequence& sequence, BranchId branch, int32_t row, int32_t distribution);
  // Behind all appends: which query sees which, if a draft is a tree.
  void FillTreeMasks();
  // Behind all appends: of each request with beams, what is selected of those that draw in this step.
  void FillSelections();

  // ---- the launch

  // Launches the step with the cache's copies. Its edits are done then, and forgotten. The caller, once it has kept the ticket,
  // calls Launched.
  Result<StepTicket> Launch(Runner* runner);
  // The next step is another one. The caller keeps what is returned until the step is computed.
  [[nodiscard]] CacheStep Launched(StepTicket ticket);
  // Does the edits that wait for a step, now. REQUIRES: no step is under way.
  Status Flush(Runner* runner);

  // Forgets all steps and edits, also where a call that threw has left things half done.
  void Clear();

 private:
  void Row(BranchId branch, int32_t kv_index, int32_t position, int32_t token) {
    StepBatch& step = batch_->step;
    step.token_ids.push_back(token);
    step.positions.push_back(position);
    step.slot_mapping.push_back(cache_.SlotOf(branch, kv_index));
  }
  void Scores(ScheduledBatch::Entry* entry, int32_t query_begin);
  // The draws after a sequence's last known token and after its drafts.
  void Draws(ScheduledBatch::Entry* entry, int32_t last_known_row);
  // A draw for the token that is `ahead` behind the sequence's last known one. Filled in place: a copy would wait for the stores.
  Draw& NewDraw(const Sequence& sequence, BranchId branch, int32_t row, int32_t ahead);
  // The fields that `draw` needs as a draw among drafts. `path`: the drafts before it, where penalties look at them.
  Drafting& NewDrafting(Draw* draw, std::span<const int32_t> path);
  // Where `count` most probable tokens go: top_begin of a draw or score.
  int32_t NewTopLogprobs(int32_t count);

  KvCache& cache_;
  // Used in turn: one is built while two may be under way.
  std::array<ScheduledBatch, 3> batches_;
  size_t next_ = 0;
  ScheduledBatch* batch_ = &batches_[0];  // the next one
  CacheStep in_cache_;                    // of the next one
  int64_t launched_ = 0;                  // number of the step launched last
  std::vector<int32_t> path_;
  std::vector<int32_t> beams_;  // entries of the next one that draw for beams
};

}  // namespace coppice
