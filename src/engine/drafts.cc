#include "engine/drafts.h"

#include <algorithm>

namespace coppice {
namespace {

// Sequences whose guesses are followed in steps without drafts, at most: each takes a microsecond or two of the host.
constexpr size_t kMostFollowed = 64;

// Useful tokens that a step with drafts gives a sequence that decodes, in the mean: where no request waits for its place, the
// slowest sample of a request counts for all, since it ends the request.
double TokensPerStep(std::span<Sequence* const> decoding, bool others_wait) {
  double tokens = 0;
  for (size_t i = 0; i < decoding.size();) {
    const size_t begin = i;
    double sum = 0, least = decoding[i]->draft_record.tokens_per_step();
    for (; i < decoding.size() && decoding[i]->request == decoding[begin]->request; ++i) {
      sum += decoding[i]->draft_record.tokens_per_step();
      least = std::min(least, decoding[i]->draft_record.tokens_per_step());
    }
    tokens += others_wait ? sum : least * static_cast<double>(i - begin);
  }
  return tokens / static_cast<double>(decoding.size());
}

}  // namespace

bool Drafts::DecideFor(int32_t running) {
  drafting_ = enabled() && (options_.policy == DraftPolicy::kAlways || gain_.ShouldDraft(running, promise_));
  return drafting_;
}

void Drafts::NoteStep(DraftGain::Step step) {
  if (options_.policy != DraftPolicy::kMeasured) return;
  if (step.asked && promise_) step.tokens = step.samples * *promise_;
  gain_.Note(step, promise_);
}

Status Drafts::Propose(Scheduler* scheduler) {
  asked_.clear();
  if (!enabled()) return OkStatus();
  if (!drafting_ && !forecasts()) {
    scheduler->ForgoDrafts();
    // The drafter gives up its state of samples only once drafts have lost: a trial without them is a few steps.
    if (drafter_rests_ || !gain_.IsSettled(scheduler->num_running())) return OkStatus();
    drafter_rests_ = true;
    return drafter_->Propose({});
  }
  drafter_rests_ = false;
  std::span<Sequence* const> decoding = scheduler->PlanDrafts();
  if (!drafting_) decoding = decoding.first(std::min(decoding.size(), kMostFollowed));
  for (Sequence* const sequence : decoding) {
    const int32_t length = sequence->length();
    const bool is_over = sequence->draft_record.Follow(sequence->draft, length, sequence->TokenAt(length - 1));
    if (is_over || drafting_) Ask(*scheduler, sequence);
  }
  if (!drafting_) scheduler->ForgoDrafts();
  if (forecasts() && !decoding.empty()) promise_ = TokensPerStep(decoding, !scheduler->waiting().empty());
  return drafter_->Propose(asked_);
}

void Drafts::Ask(const Scheduler& scheduler, Sequence* sequence) {
  sequence->draft.Clear();
  sequence->draft_record.Begin(sequence->length(), drafting_);
  const int32_t wanted = drafting_ && sequence->draft_depth > 0 ? sequence->draft_depth : options_.max_depth;
  const int32_t generated = static_cast<int32_t>(sequence->generated.size());
  // One token more than the accepted drafts comes of a step.
  const int32_t depth =
      std::min({wanted, scheduler.draft_share(), sequence->limit - generated - 1, options_.max_context - sequence->length() - 1});
  if (depth > 0) asked_.push_back({.sequence = sequence, .max_depth = depth});
}

void Drafts::Clear() {
  asked_.clear();
  if (drafter_) drafter_->Clear();
}

Status Drafts::Sleep() {
  Clear();
  return drafter_ ? drafter_->Sleep() : OkStatus();
}

// Deeper while everything is accepted, else as deep as it just went and one more.
void Drafts::NoteAccepted(Sequence* sequence, int32_t drafts, int32_t accepted) const {
  int32_t depth = 0;
  for (int32_t i = 0; i < drafts; ++i) depth = std::max(depth, sequence->draft.DepthOf(i));
  sequence->draft_depth = accepted == depth ? std::min(2 * depth, options_.max_depth) : accepted + 1;
}

}  // namespace coppice
