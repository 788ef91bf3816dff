#include "engine/scheduler.h"

#include <algorithm>

#include "core/check.h"

namespace coppice {
namespace {

// How many of the first in line are compared; bounds the cost of matching prompts.
constexpr size_t kWindow = 32;
// A sequence that was overtaken this often goes before whatever is cached: nobody starves.
constexpr int32_t kMaxOvertaken = 32;

}  // namespace

void Scheduler::Add(RequestState* request) {
  Sequence& first = request->sequences.front();
  first.state = Sequence::State::kWaiting;
  waiting_.push_back(&first);
}

const StepBatch& Scheduler::Schedule() {
  batch_.Clear();
  cache_->BeginStep();
  if (options_.policy == SchedulePolicy::kPrefillFirst) {
    ScheduleRunningPrefills();
    Admit(/*prompts_only=*/true);
    if (!batch_.empty()) return batch_;
  }
  ScheduleDecodes();
  ScheduleRunningPrefills();
  RemoveStopped();  // the preempted ones, so that they can be admitted again
  Admit();
  return batch_;
}

void Scheduler::ScheduleDecodes() {
  for (size_t i = 0; i < running_.size(); ++i) {
    PrefetchAhead(i, running_.size(), [&](size_t j) { return running_[j]; });
    Sequence* const sequence = running_[i];
    if (sequence->state != Sequence::State::kRunning || sequence->prefilling() || budget_left() == 0) continue;
    if (cache_->Grow(sequence->branch, sequence->length()) || MakeRoom(i)) Append(sequence, 1);
  }
}

void Scheduler::ScheduleRunningPrefills() {
  for (Sequence* const sequence : running_) {
    if (sequence->state != Sequence::State::kRunning || !sequence->prefilling()) continue;
    if (const int32_t count = std::min(sequence->remaining(), prefill_left()); count > 0) Append(sequence, count);
  }
}

void Scheduler::Admit(bool prompts_only) {
  if (waiting_.empty() || prefill_left() <= 0 || cache_->free_branches() == 0) return;
  for (Sequence* const sequence : AdmissionOrder()) {
    if (prefill_left() <= 0) return;
    if (prompts_only && !sequence->prefilling()) continue;
    const KvCache::Outcome outcome = TryAdmit(sequence);
    // Nobody squeezes past the one whose turn it is; who waits for an equal prompt in flight lets others go first.
    if (outcome == KvCache::Outcome::kNoRoom) return;
    if (outcome == KvCache::Outcome::kPending) continue;
    const auto place = std::find(waiting_.begin(), waiting_.end(), sequence);
    for (auto earlier = waiting_.begin(); earlier != place; ++earlier) ++(*earlier)->overtaken;
    waiting_.erase(place);
    Append(sequence, std::min(sequence->remaining(), prefill_left()));
  }
}

std::span<Sequence* const> Scheduler::AdmissionOrder() {
  order_.assign(waiting_.begin(), waiting_.begin() + std::min(kWindow, waiting_.size()));
  if (order_.size() == 1) return order_;
  // More of it cached, sooner: what is shared is read and kept once while its users run together.
  std::vector<std::pair<int32_t, Sequence*>>& ranked = ranked_;
  ranked.clear();
  for (Sequence* const sequence : order_) {
    const bool aged = sequence->overtaken >= kMaxOvertaken;
    ranked.emplace_back(aged ? INT32_MAX : cache_->CachedTokens(sequence->Tokens(&scratch_), SaltOf(*sequence)), sequence);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::transform(ranked.begin(), ranked.end(), order_.begin(), [](const auto& entry) { return entry.second; });
  return order_;
}

CacheSalt Scheduler::SaltOf(const Sequence& sequence) {
  const Request& params = sequence.request->params;
  return {.salt = params.cache_salt, .private_begin = params.cache_private_begin};
}

KvCache::Outcome Scheduler::TryAdmit(Sequence* sequence) {
  RequestState& request = *sequence->request;
  // Everybody must be able to take one more page, or the newcomer would push somebody out at once.
  const int32_t spare_pages = running_.empty() ? 0 : static_cast<int32_t>(running_.size()) + sequence->births();
  const KvCache::Admission admission = cache_->Admit({.tokens = sequence->Tokens(&scratch_),
                                                      .salt = SaltOf(*sequence),
                                                      .compute_all = !request.prompt_done && !request.prompt_logprobs.empty(),
                                                      .spare_pages = spare_pages});
  if (admission.outcome != KvCache::Outcome::kAdmitted) return admission.outcome;
  sequence->state = Sequence::State::kRunning;
  sequence->branch = admission.branch;
  sequence->computed = admission.computed;
  if (request.cached_tokens < 0) request.cached_tokens = admission.computed;
  running_.push_back(sequence);
  return admission.outcome;
}

void Scheduler::Append(Sequence* sequence, int32_t count) {
  const int32_t query_begin = batch_.num_tokens();
  const int32_t begin = sequence->computed, end = begin + count;
  if (sequence->prefilling()) batch_.prefill_tokens += count;
  cache_->SetQueries(sequence->branch, query_begin, count, end);
  for (int32_t kv_index = begin; kv_index < end; ++kv_index) {
    batch_.token_ids.push_back(sequence->TokenAt(kv_index));
    batch_.positions.push_back(kv_index);
    batch_.slot_mapping.push_back(cache_->SlotOf(sequence->branch, kv_index));
  }
  StepBatch::Entry entry{.sequence = sequence,
                         .count = count,
                         .first_logit_row = static_cast<int32_t>(batch_.logit_rows.size()),
                         .samples = end == sequence->length()};
  const bool scores_prompt = !sequence->request->prompt_done && !sequence->request->prompt_logprobs.empty();
  entry.logit_rows = scores_prompt ? count : entry.samples ? 1 : 0;
  for (int32_t row = count - entry.logit_rows; row < count; ++row) batch_.logit_rows.push_back(query_begin + row);
  batch_.entries.push_back(entry);
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
  sequence->state = Sequence::State::kWaiting;
  waiting_.push_front(sequence);
  ++preemptions_;
}

void Scheduler::Finish(Sequence* sequence) {
  if (sequence->state == Sequence::State::kRunning) Release(sequence);
  if (sequence->state == Sequence::State::kWaiting) waiting_.erase(std::find(waiting_.begin(), waiting_.end(), sequence));
  sequence->state = Sequence::State::kFinished;
}

void Scheduler::Branch(Sequence* first, std::span<Sequence* const> survivors) {
  const BranchId trunk = first->branch;
  const int32_t computed = first->computed;
  const bool first_survives = std::find(survivors.begin(), survivors.end(), first) != survivors.end();
  COPPICE_DCHECK(!survivors.empty());
  Sequence* const heir = first_survives ? first : survivors.front();
  size_t waiting_place = 0;
  for (Sequence* const sequence : survivors) {
    sequence->computed = computed;
    if (sequence == heir) {
      sequence->branch = trunk;
    } else {
      sequence->branch = cache_->Fork(trunk);
    }
    if (sequence->branch == kNoBranch) {  // behind its earlier siblings, before everybody else: the prompt is still warm
      sequence->state = Sequence::State::kWaiting;
      waiting_.insert(waiting_.begin() + waiting_place++, sequence);
      continue;
    }
    if (sequence->state != Sequence::State::kRunning) running_.push_back(sequence);
    sequence->state = Sequence::State::kRunning;
  }
  if (!first_survives) {
    first->branch = kNoBranch;
    first->state = Sequence::State::kFinished;
  }
}

void Scheduler::Release(Sequence* sequence) {
  cache_->Release(sequence->branch, sequence->Tokens(&scratch_));
  sequence->branch = kNoBranch;
  sequence->computed = 0;
}

void Scheduler::RemoveStopped() {
  std::erase_if(running_, [](const Sequence* sequence) { return sequence->state != Sequence::State::kRunning; });
}

}  // namespace coppice
