#include "engine/drafts.h"

#include <algorithm>

namespace coppice {

bool Drafts::DecideFor(int32_t running) {
  drafting_ = enabled() && (options_.policy == DraftPolicy::kAlways || gain_.ShouldDraft(running));
  return drafting_;
}

void Drafts::NoteStep(const DraftGain::Step& step) {
  if (options_.policy == DraftPolicy::kMeasured) gain_.Note(step);
}

Status Drafts::Propose(Scheduler* scheduler) {
  asked_.clear();
  if (!enabled()) return OkStatus();
  if (!drafting_) {
    scheduler->ForgoDrafts();
    // What it holds of samples is given up only once drafts have lost: a trial without them is a few steps.
    if (drafter_rests_ || !gain_.IsSettled(scheduler->num_running())) return OkStatus();
    drafter_rests_ = true;
    return drafter_->Propose({});
  }
  drafter_rests_ = false;
  for (Sequence* const sequence : scheduler->PlanDrafts()) {
    sequence->draft.Clear();
    const int32_t wanted = sequence->draft_depth > 0 ? sequence->draft_depth : options_.max_depth;
    const int32_t generated = static_cast<int32_t>(sequence->generated.size());
    // One token more than the accepted drafts comes of a step.
    const int32_t depth = std::min({wanted, scheduler->draft_share(), sequence->request->params.max_tokens - generated - 1,
                                    options_.max_context - sequence->length() - 1});
    if (depth > 0) asked_.push_back({.sequence = sequence, .max_depth = depth});
  }
  return drafter_->Propose(asked_);
}

void Drafts::Clear() {
  asked_.clear();
  if (drafter_) drafter_->Clear();
}

// Deeper while everything is accepted, else as deep as it just went and one more.
void Drafts::NoteAccepted(Sequence* sequence, int32_t drafts, int32_t accepted) const {
  int32_t depth = 0;
  for (int32_t i = 0; i < drafts; ++i) depth = std::max(depth, sequence->draft.DepthOf(i));
  sequence->draft_depth = accepted == depth ? std::min(2 * depth, options_.max_depth) : accepted + 1;
}

}  // namespace coppice
