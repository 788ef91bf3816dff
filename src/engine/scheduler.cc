#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/check.h"

namespace coppice {
void Scheduler::Add(RequestState* request) {
  Sequence& first = request->sequences.begin()->second;
  first.state = Sequence::State::kWaiting;
  request->share = shares_.Of(request->params.share_of);
  order_.Add(&first);
}

ScheduledBatch* Scheduler::Schedule(bool step_under_way) {
  begun_.clear();
  steps_->Begin();
  BeginPauses();
  shares_.Count(running_, waiting(), cache_->free_branches());
  if (const std::span<Sequence* const> giving_way = FindGivingWay(); !giving_way.empty()) {
    if (step_under_way) return nullptr;
    for (Sequence* const sequence : giving_way) Preempt(sequence);
    RemoveStopped();
  }
  if (shares_.contended()) shares_.DividePrompts(options_.chunk, cache_->free_branches() > 0);
  if (step_under_way) {
    ForkUnderWay();
    if (!GrowDecodes()) return nullptr;
  }
  ScheduleAll();
  if (steps_->next().empty() && is_held_ && !step_under_way) {  // the others cannot run
    pauses_.Clear();
    is_held_ = false;
    ScheduleAll();
  }
  if (predictor_ != nullptr) steps_->next().predicted_seconds = predictor_->Seconds(steps_->next().shape);
  steps_->FillTreeMasks();
  steps_->FillSelections();
  return &steps_->next();
}

void Scheduler::ScheduleAll() {
  if (options_.policy == SchedulePolicy::kPrefillFirst) {
    ScheduleRunningPrefills();
    Admit(/*prompts_only=*/true);
    if (!steps_->next().empty()) return;
  }
  if (ScheduleDecodes()) ScheduleRunningPrefills();
  RemoveStopped();  // the preempted ones, so that they can be admitted again
  Admit();
}

void Scheduler::BeginPauses() {
  is_held_ = false;
  if (pauses_.empty()) return;
  pauses_.End(MaskPauses::Clock::now());
  const auto is_of_others = [this](const Sequence* sequence) {
    return sequence->state != Sequence::State::kFinished && !pauses_.Has(sequence->request->params.share_of);
  };
  is_held_ = !pauses_.empty() && (std::ranges::any_of(running_, is_of_others) || std::ranges::any_of(waiting(), is_of_others));
}

std::span<Sequence* const> Scheduler::FindGivingWay() {
  giving_way_.clear();
  if (!shares_.contended() || holds_new_ || shares_.neediest() == nullptr || IsHeld(*shares_.neediest()->next)) {
    lacks_pages_ = false;
    return {};
  }
  const FairShare& needy = *shares_.neediest();
  // Pages are not counted by name: where they are short, so many sequences at least are left to the others as the needy one has.
  const int32_t kept = lacks_pages_ ? needy.running + 1 : shares_.part();
  const int32_t wanted = std::min(needy.next->num_forks(), shares_.part() - needy.running) - cache_->free_branches();
  int32_t missing = std::max(wanted, lacks_pages_ ? 1 : 0);
  for (size_t i = running_.size(); i-- > 0 && missing > 0;) {  // the newest first
    Sequence* const sequence = running_[i];
    FairShare& share = *sequence->request->share;
    if (sequence->state != Sequence::State::kRunning || share.running <= kept) continue;
    if (sequence->request->params.priority > needy.next->request->params.priority) continue;
    giving_way_.push_back(sequence);
    --share.running;
    --missing;
  }
  return giving_way_;
}

bool Scheduler::all_held() const {
  return holds_new_ && running_.empty() &&
         std::ranges::none_of(waiting(), [](const Sequence* sequence) { return sequence->request->has_begun(); });
}

bool Scheduler::MayTakePlace(const Sequence& sequence) const {
  if (holds_new_) return sequence.request->has_begun();
  if (!shares_.contended()) return true;
  return lacks_pages_ ? sequence.request->share == shares_.neediest() : shares_.MayTake(sequence);
}

void Scheduler::ForkUnderWay() {
  for (const ScheduledBatch::Entry& entry : steps_->last().entries) {
    const RequestState& request = *entry.sequence->request;
    if (!entry.begins_samples || request.forked || request.has_constraint || request.beams != nullptr) continue;
    Sequence* const first = entry.sequence;
    if (first->pruned) continue;                                         // the others begin with the commit
    if (first->ends_with_draw(cache_->options().max_context)) continue;  // and so do all others: they never run
    running_samples_.clear();
    for (auto& [index, sequence] : first->request->sequences) {
      if (!request.BeginsWithPrompt(sequence)) continue;
      sequence.draws_under_way = 1;
      sequence.draw = entry.first_draw + sequence.index;
      running_samples_.push_back(&sequence);
    }
    Fork(first, running_samples_);
  }
}

bool Scheduler::GrowDecodes() {
  for (const Sequence* const sequence : running_) {
    if (!Decodes(*sequence) || sequence->waits_for_draw()) continue;
    if (sequence->draws_under_way > 0 && sequence->ends_with_draw(cache_->options().max_context)) continue;
    if (!cache_->Grow(sequence->branch, sequence->length() + sequence->draws_under_way)) return false;
  }
  return true;
}

std::span<Sequence* const> Scheduler::PlanDrafts() {
  steps_->DropWork();  // its sequences may be gone
  decoding_.clear();
  bool has_prompts = !waiting().empty();
  int32_t undrafted = 0;  // decode too, a row each
  for (Sequence* const sequence : running_) {
    if (sequence->state != Sequence::State::kRunning) continue;
    if (sequence->prefilling()) {
      has_prompts = true;
    } else if (sequence->request->has_constraint || sequence->request->beams != nullptr) {
      ++undrafted;
    } else {
      decoding_.push_back(sequence);
    }
  }
  // Prompts are sure to be of use, drafts are not: they share what decoding leaves. A tree mask holds for a whole step and allows
  // few queries a branch, so trees keep out of the way of prompts.
  const int32_t left = options_.max_batch_tokens - static_cast<int32_t>(decoding_.size()) - undrafted;
  draft_share_ = decoding_.empty() ? 0 : (has_prompts ? left / 2 : left) / static_cast<int32_t>(decoding_.size());
  may_draft_trees_ = !has_prompts;
  if (draft_share_ == 0) decoding_.clear();
  return decoding_;
}

bool Scheduler::ScheduleDecodes() {
  bool has_prefills = false;
  arrived_.clear();
  for (size_t i = 0; i < running_.size(); ++i) {
    PrefetchAhead(i, running_.size(), *cache_, [&](size_t j) { return running_[j]; });
    Sequence* const sequence = running_[i];
    if (sequence->state != Sequence::State::kRunning) continue;
    if (sequence->prefilling()) {
      has_prefills = true;
      continue;
    }
    if (sequence->remaining() == 0) {
      arrived_.push_back(sequence);
      continue;
    }
    if (sequence->waits_for_draw() || IsHeld(*sequence)) continue;
    const int32_t under_way = sequence->draws_under_way;
    if (under_way > 0 && sequence->ends_with_draw(cache_->options().max_context)) continue;
    if (budget_left() > 0 && (cache_->Grow(sequence->branch, sequence->length() + under_way) || MakeRoom(i))) {
      Append(sequence, 1, TakeDrafts(*sequence));
    }
  }
  YieldArrived();
  return has_prefills;
}

void Scheduler::YieldArrived() {
  for (Sequence* const beam : arrived_) {
    const auto waits = [](const auto& entry) { return entry.second.state == Sequence::State::kWaiting; };
    if (beam->state == Sequence::State::kRunning && std::ranges::any_of(beam->request->sequences, waits)) Preempt(beam);
  }
}

void Scheduler::ScheduleRunningPrefills() {
  for (Sequence* const sequence : running_) {
    if (sequence->state != Sequence::State::kRunning || !sequence->prefilling()) continue;
    if (sequence->draws_under_way > 0 || IsHeld(*sequence)) continue;  // its samples begin with the commit of that step
    if (const int32_t count = std::min(sequence->remaining(), prefill_left(*sequence)); count > 0) Append(sequence, count);
  }
}

void Scheduler::Admit(bool prompts_only) {
  while (!waiting().empty() && prefill_left() > 0 && cache_->free_branches() > 0) {
    order_.FindCandidates([this](const Sequence& sequence) { return MayTakePlace(sequence) && !IsHeld(sequence); });
    if (!order_.has_candidates() || !AdmitCandidates(prompts_only)) return;
  }
}

bool Scheduler::AdmitCandidates(bool prompts_only) {
  bool all_admitted = true;
  while (order_.has_candidates() && prefill_left() > 0) {
    const AdmissionOrder::Candidate candidate = order_.TakeBest();
    Sequence* const sequence = candidate.sequence;
    if (prompts_only && !sequence->prefilling()) {
      all_admitted = false;
      continue;
    }
    if (!MayTakePlace(*sequence) || IsHeld(*sequence) || prefill_left(*sequence) == 0) {  // of the name's part
      all_admitted = false;
      continue;
    }
    if (order_.KeepsPlacesFrom(candidate)) return false;
    if (sequence->draws_under_way > 0) return false;  // its text is not known yet
    const KvCache::Outcome outcome = TryAdmit(sequence);
    // None squeezes past the one whose turn it is; one that waits for an equal prompt in flight lets others go first.
    if (outcome == KvCache::Outcome::kNoRoom) {
      lacks_pages_ = shares_.contended() && sequence->request->share == shares_.neediest();
      return false;
    }
    if (outcome == KvCache::Outcome::kPending) {
      order_.KeepPlacesFor(*sequence);
      all_admitted = false;
      continue;
    }
    order_.Admitted(sequence);
    if (shares_.contended()) {
      lacks_pages_ &= sequence->request->share != shares_.neediest();
      FairShares::NoteAdmitted(*sequence);
    }
    Append(sequence, std::min(sequence->remaining(), prefill_left(*sequence)));
  }
  return all_admitted;
}

KvCache::Outcome Scheduler::TryAdmit(Sequence* sequence) {
  RequestState& request = *sequence->request;
  int32_t compute_from = std::numeric_limits<int32_t>::max();
  if (!request.forked && !request.scores.empty()) {
    const std::optional<int32_t> first = kept_scores_.Find(sequence, *cache_);
    if (!first) return KvCache::Outcome::kPending;
    compute_from = *first;
  }
  // Each sequence must be able to take one more page, or the newcomer would push one out at once.
  const int32_t spare_pages = running_.empty() ? 0 : static_cast<int32_t>(running_.size()) + sequence->num_forks();
  const KvCache::Admission admission = cache_->Admit({.tokens = sequence->Tokens(&scratch_),
                                                      .salt = SaltOf(*sequence),
                                                      .compute_from = compute_from,
                                                      .spare_pages = spare_pages,
                                                      .cursor = &sequence->found});
  if (admission.outcome != KvCache::Outcome::kAdmitted) return admission.outcome;
  sequence->state = Sequence::State::kRunning;
  sequence->branch = admission.branch;
  sequence->launched = sequence->computed = admission.computed;
  steps_->SetSlot(*sequence, sequence->branch);
  sequence->acknowledged = static_cast<int32_t>(sequence->generated.size());
  if (!request.listener->begun()) {
    request.listener->cached_tokens = admission.computed;
    begun_.push_back(request.id);
  }
  running_.push_back(sequence);
  return admission.outcome;
}

int32_t Scheduler::TakeDrafts(const Sequence& sequence) {
  if (draft_share_ == 0) return 0;
  const Draft& draft = sequence.draft;
  int32_t count = std::min({draft.size(), draft_share_, cache_->options().max_context - sequence.length()});
  if (!may_draft_trees_ && count > draft.LinearLength()) {
    count = draft.LinearLength();
    ++draft_trees_cut_;
  }
  // No sequence is preempted for a guess.
  return count > 0 && cache_->Grow(sequence.branch, sequence.length() + count) ? count : 0;
}

void Scheduler::Append(Sequence* sequence, int32_t count, int32_t drafts) {
  if (sequence->prefilling()) sequence->request->share->prompt_tokens += count;
  steps_->Append(sequence, count, drafts);
}

bool Scheduler::MakeRoom(size_t index) {
  Sequence* const sequence = running_[index];
  for (size_t newest = running_.size() - 1; newest > index; --newest) {
    if (running_[newest]->state != Sequence::State::kRunning) continue;
    Preempt(running_[newest]);
    if (cache_->Grow(sequence->branch, sequence->length())) return true;
  }
  Preempt(sequence);
  return false;
}

void Scheduler::Preempt(Sequence* sequence) {
  Release(sequence);
  ++preemptions_;
  if (sequence->has_arrived()) {  // there is nothing to come back for before all others have, too
    sequence->state = Sequence::State::kPending;
    return;
  }
  sequence->state = Sequence::State::kWaiting;
  order_.AddToFront(sequence);
}

void Scheduler::PreemptAll() {
  for (auto sequence = running_.rbegin(); sequence != running_.rend();
       ++sequence) {  // so that the oldest is the first in the queue
    if ((*sequence)->state == Sequence::State::kRunning) Preempt(*sequence);
  }
  RemoveStopped();
}

void Scheduler::Finish(Sequence* sequence) {
  if (sequence->state == Sequence::State::kRunning) Release(sequence);
  if (sequence->state == Sequence::State::kWaiting) order_.Remove(sequence);
  sequence->state = Sequence::State::kFinished;
  sequence->constraint.reset();
}

void Scheduler::Fork(Sequence* first, std::span<Sequence* const> running_samples) {
  const BranchId trunk = first->branch;
  const int32_t launched = first->launched, computed = first->computed, acknowledged = first->acknowledged;
  const bool first_survives = std::find(running_samples.begin(), running_samples.end(), first) != running_samples.end();
  COPPICE_DCHECK(!running_samples.empty());
  first->request->forked = true;
  Sequence* const successor = first_survives ? first : running_samples.front();  // of the trunk
  size_t waiting_place = 0;
  for (Sequence* const sequence : running_samples) {
    sequence->branch = sequence == successor ? trunk : cache_->Fork(trunk, launched);
    if (sequence->branch == kNoBranch) {  // behind its earlier siblings, before all others: the prompt is still warm
      sequence->state = Sequence::State::kWaiting;
      order_.AddToFront(sequence, waiting_place++);
      continue;
    }
    sequence->launched = launched;
    sequence->computed = computed;
    sequence->acknowledged = acknowledged;
    if (sequence->branch != trunk) steps_->ForkSlot(trunk, sequence->branch);
    if (sequence->state != Sequence::State::kRunning) running_.push_back(sequence);
    sequence->state = Sequence::State::kRunning;
  }
  if (!first_survives) {
    first->branch = kNoBranch;
    first->launched = first->computed = 0;
    first->state = Sequence::State::kFinished;
    first->constraint.reset();
    ++num_stopped_;
  }
}

void Scheduler::BeginChild(Sequence* child, const Sequence& parent) {
  RequestState& request = *child->request;
  request.share = shares_.Of(request.params.share_of);  // where none of its samples waits or runs, it has none
  if (request.computes_prompt()) return;
  request.forked = true;
  if (!ForkBeside(child, parent)) Wait(child);
}

bool Scheduler::ForkBeside(Sequence* child, const Sequence& parent) {
  const int32_t kv_len = child->length() - 1;  // the last one's forward pass gives the logits
  if (parent.state != Sequence::State::kRunning || parent.computed < kv_len || !MayTakePlace(*child)) return false;
  const BranchId branch = cache_->Fork(parent.branch, kv_len);
  if (branch == kNoBranch) return false;
  child->state = Sequence::State::kRunning;
  child->branch = branch;
  child->launched = child->computed = kv_len;
  steps_->SetSlot(*child, branch);
  child->acknowledged = static_cast<int32_t>(child->generated.size());
  running_.push_back(child);
  if (shares_.contended()) FairShares::NoteAdmitted(*child);
  return true;
}

void Scheduler::DropBeam(Sequence* beam) {
  if (beam->state == Sequence::State::kRunning) {
    cache_->Release(beam->branch, {});
    Leave(beam);
  }
  if (beam->state == Sequence::State::kWaiting) order_.Remove(beam);
  beam->state = Sequence::State::kPending;
  beam->generated.clear();
  beam->found = {};
}

void Scheduler::ForkBeam(Sequence* beam, const Sequence& parent, int32_t token) {
  beam->request->share = shares_.Of(beam->request->params.share_of);  // where none of its beams waits or runs, it has none
  beam->generated = parent.generated;
  beam->generated.push_back(token);
  if (!ForkBeside(beam, parent)) Wait(beam);
}

void Scheduler::ExtendBeam(Sequence* beam, int32_t token) {
  beam->request->share = shares_.Of(beam->request->params.share_of);
  if (beam->state == Sequence::State::kWaiting) order_.Remove(beam);
  beam->generated.push_back(token);
  if (beam->state != Sequence::State::kRunning) Wait(beam);
}

void Scheduler::Wait(Sequence* sequence) {
  sequence->state = Sequence::State::kWaiting;
  order_.AddBehindBegun(sequence);
}

void Scheduler::BeginPending(RequestState* request) {
  request->forked = true;
  for (auto& [index, sequence] : request->sequences) {
    if (sequence.state == Sequence::State::kPending) Wait(&sequence);
  }
}

void Scheduler::Requeue(Sequence* sequence) {
  RequestState& request = *sequence->request;
  request.share = shares_.Of(request.params.share_of);
  request.forked = true;
  if (sequence->state == Sequence::State::kWaiting) return;
  if (sequence->state == Sequence::State::kRunning) Release(sequence);
  sequence->state = Sequence::State::kPending;
  RemoveStopped();
  Wait(sequence);
}

void Scheduler::Release(Sequence* sequence) {
  cache_->Release(sequence->branch, sequence->Tokens(&scratch_));
  Leave(sequence);
}

void Scheduler::Leave(Sequence* sequence) {
  steps_->FreeSlot(sequence->branch);
  sequence->branch = kNoBranch;
  sequence->launched = sequence->computed = 0;
  ++num_stopped_;
}

void Scheduler::Clear() {
  order_.Clear();
  running_.clear();
  num_stopped_ = 0;
  for (std::vector<Sequence*>* const of_sequences : {&running_samples_, &giving_way_, &arrived_, &decoding_}) of_sequences->clear();
  shares_.Clear();
  pauses_.Clear();
}

void Scheduler::RemoveStopped() {
  if (std::exchange(num_stopped_, 0) == 0) return;
  std::erase_if(running_, [](const Sequence* sequence) { return sequence->state != Sequence::State::kRunning; });
}

}  // namespace coppice
