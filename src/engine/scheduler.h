// Which sequences run in the next step, and with how many tokens: continuous batching with chunked prefill under a token budget.
// Decodes come first, so that a long prompt never stalls running samples; what is left of the budget goes to prompts. Out of pages
// is a normal result: the newest sequence gives its pages up and is computed again later, mostly from the cache. So do sequences of
// a name that holds more than its part of the places while another name wants its own (fair_shares.h). Layer: engine. Chunked
// prefill beside decode: POD-Attention section 2; docs/engine.md, "The scheduler".
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/admission_order.h"
#include "engine/fair_shares.h"
#include "engine/kept_scores.h"
#include "engine/mask_pauses.h"
#include "engine/request_state.h"
#include "engine/scheduled_batch.h"
#include "engine/step_builder.h"
#include "engine/step_predictor.h"

namespace coppice {

// Thread-compatible.
class Scheduler {
 public:
  struct Options {
    int32_t max_batch_tokens = 512;  // tokens of a step
    int32_t chunk = 512;             // of them, tokens of prompts at most
    SchedulePolicy policy = SchedulePolicy::kMixed;
    double target_tbt = 0;  // seconds that a step with rows of both kinds may take, as predicted; 0: no target
  };
  // Prompt tokens of a step in which samples decode, at least, whatever the target: else prompts might wait for ever.
  static constexpr int32_t kLeastChunk = 16;
  // `cache` and `steps`, which writes what is scheduled, outlive the scheduler, and so does `predictor`; null: there is no target.
  Scheduler(const Options& options, KvCache* cache, StepBuilder* steps, const StepPredictor* predictor)
      : options_(options), cache_(cache), steps_(steps), predictor_(predictor), order_(cache) {}

  // Takes in a new request; its sequences live in `request`. Its first one waits in the queue (AdmissionOrder).
  void Add(RequestState* request);
  // For drafting: the running sequences that decode in the next step, if it has room for drafts; else none. REQUIRES: Schedule
  // comes next.
  std::span<Sequence* const> PlanDrafts();
  // Instead of PlanDrafts: no sequence drafts in the next step.
  void ForgoDrafts() { draft_share_ = 0; }
  // Drafts for which the next step has room, per sequence. Set by PlanDrafts.
  int32_t draft_share() const { return draft_share_; }
  // The next step's work (StepBuilder::next); empty when no sequence can run. With a step under way (Launched and not committed)
  // its tokens count as computed, and what it draws is referred to. Null: a sequence must give way, so that step must be committed
  // first.
  ScheduledBatch* Schedule(bool step_under_way);
  // The requests that Schedule took in for the first time, until it is called again.
  std::span<const RequestId> begun() const { return begun_; }
  // Constrained samples of `share_of` sit out steps before `until`, while requests of others have something to do.
  void Pause(std::string_view share_of, MaskPauses::Clock::time_point until) { pauses_.Add(share_of, until); }
  // Requests that have not begun are not taken in: those that have can come to their end.
  void HoldNew(bool hold) { holds_new_ = hold; }
  // Whether all that waits is held so, and nothing runs.
  bool all_held() const;

  // All that runs gives its pages up, to be computed again.
  void PreemptAll();

  // A running sequence has no more to do, or is not wanted any more; what it computed stays cached.
  void Finish(Sequence* sequence);
  // The prompt of `first` is computed, or its last step launched: the samples in `running_samples` (not finished) begin, each with
  // a branch of its own; those without a slot wait. `first` keeps its branch if it is among them.
  void Fork(Sequence* first, std::span<Sequence* const> running_samples);

  // A sample that was made from `parent`, which stands where it does or further on, begins: beside it where that runs and there is
  // room, else it waits in the queue, while the prompt is computed for BeginPending. REQUIRES: no step is under way.
  void BeginChild(Sequence* child, const Sequence& parent);
  // Samples that were made before the prompt was computed begin.
  void BeginPending(RequestState* request);
  // A sequence that runs, waits or has finished goes to the queue, since it has tokens to be computed that were added to it.
  // REQUIRES: no step is under way.
  void Requeue(Sequence* sequence);

  // ---- beams, between steps as far as their own request goes

  // A beam is not gone on with: what it holds is free, and its tokens are forgotten.
  void DropBeam(Sequence* beam);
  // A beam that holds nothing becomes what another one has computed, and a token behind it, as BeginChild. REQUIRES: RemoveStopped
  // since it was dropped.
  void ForkBeam(Sequence* beam, const Sequence& parent, int32_t token);
  // A beam has one more token.
  void ExtendBeam(Sequence* beam, int32_t token);

  // Forgets all sequences, also where a call that threw has left things half done. Counters stay.
  void Clear();

  // Lets go of sequences that do not run any more; before their requests are destroyed.
  void RemoveStopped();

  bool idle() const { return waiting().empty() && running_.empty(); }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  const std::deque<Sequence*>& waiting() const { return order_.line(); }
  int64_t preemptions() const { return preemptions_; }
  int64_t draft_trees_cut() const { return draft_trees_cut_; }

 private:
  // Those that give way in this step to the name that needs a place most; mostly none.
  std::span<Sequence* const> FindGivingWay();
  bool ForkBeside(Sequence* child, const Sequence& parent);
  // Beams that have arrived give up their branches where others of their request wait for one: else all might wait for each other.
  void YieldArrived();
  // Stands behind what has begun and before what has not.
  void Wait(Sequence* sequence);
  // Forks the samples of prompts whose last step is under way.
  void ForkUnderWay();
  // Pages for all that decode in the next step; false if there are not enough.
  bool GrowDecodes();
  // It decodes in the next step, as far as budgets go.
  bool Decodes(const Sequence& sequence) const {
    return sequence.state == Sequence::State::kRunning && !sequence.prefilling() && sequence.remaining() == 1;
  }
  // Sets is_held_, for a step: whether pauses hold in it.
  void BeginPauses();
  bool IsHeld(const Sequence& sequence) const {
    return is_held_ && sequence.request->has_constraint && pauses_.Has(sequence.request->params.share_of);
  }
  // Returns whether running sequences prefill.
  bool ScheduleDecodes();
  void ScheduleAll();
  void ScheduleRunningPrefills();
  // Takes in waiting sequences; `prompts_only`: not those whose next token is chosen from what is cached.
  void Admit(bool prompts_only = false);
  // Takes in the candidates; whether that was all of them, so that those behind them in the queue may follow.
  bool AdmitCandidates(bool prompts_only);
  KvCache::Outcome TryAdmit(Sequence* sequence);
  // Adds `count` tokens of a running sequence to the batch, and behind them the first `drafts` of its draft.
  void Append(Sequence* sequence, int32_t count, int32_t drafts = 0);
  // How many drafts of a sequence that decodes go with it, with pages for them.
  int32_t TakeDrafts(const Sequence& sequence);
  // Pages for one more token of `running_[index]`, taking them from newer sequences if need be; false if it had to give way itself.
  bool MakeRoom(size_t index);
  void Preempt(Sequence* sequence);
  void Release(Sequence* sequence);
  // Behind the end of its branch in the cache.
  void Leave(Sequence* sequence);
  int32_t budget_left() const { return options_.max_batch_tokens - steps_->next().num_tokens(); }
  // Whether it may be taken in now, as far as names go.
  bool MayTakePlace(const Sequence& sequence) const;
  // Of what is left, what the sequence may have; a decode belongs to no part of prompts.
  int32_t prefill_left(const Sequence& sequence) const {
    int32_t left = prefill_left();
    if (left > 0 && sequence.prefilling()) left = std::max(1, WithinTarget(left, sequence.launched));
    return shares_.contended() && sequence.prefilling() ? std::min(left, shares_.PromptTokensFor(sequence)) : left;
  }
  int32_t prefill_left() const {
    int32_t left = std::min(budget_left(), options_.chunk - steps_->next().prefill_tokens);
    if (steps_->next().has_draft_tree) left = std::min(left, Draft::kMaxTokens + 1);  // queries of a branch under a tree mask
    return WithinTarget(left, /*before=*/0);
  }
  // Of `left` tokens of a prompt behind its first `before`, as many as let the step be in time, where samples decode in it.
  int32_t WithinTarget(int32_t left, int32_t before) const {
    const StepSums& shape = steps_->next().shape;
    if (predictor_ == nullptr || left <= 0 || shape.decode_rows == 0) return left;
    const int32_t in_time = predictor_->MostPromptRows(shape, before, options_.target_tbt, left);
    return std::max(in_time, std::min(left, kLeastChunk - shape.prompt_rows));
  }

  Options options_;
  KvCache* cache_;
  StepBuilder* steps_;
  const StepPredictor* predictor_;
  AdmissionOrder order_;
  FairShares shares_;
  bool lacks_pages_ = false;  // for the neediest name's next sequence: the others' wait until it is taken in
  MaskPauses pauses_;
  bool is_held_ = false;
  bool holds_new_ = false;
  std::vector<Sequence*> running_;  // in order of admission; with stopped ones until RemoveStopped
  int32_t num_stopped_ = 0;         // of them
  std::vector<Sequence*> running_samples_, giving_way_, arrived_;
  std::vector<int32_t> scratch_;
  KeptScores kept_scores_;
  std::vector<RequestId> begun_;
  std::vector<Sequence*> decoding_;
  int32_t draft_share_ = 0;
  bool may_draft_trees_ = false;
  int64_t preemptions_ = 0, draft_trees_cut_ = 0;
};

}  // namespace coppice
