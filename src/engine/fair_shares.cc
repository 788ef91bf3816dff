#include "engine/fair_shares.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>

namespace coppice {
namespace {

constexpr int32_t kLeastPart = 16;  // tokens of prompts: less is not worth a step's weights

int32_t PriorityOf(const Sequence& sequence) { return sequence.request->params.priority; }

// `highest` is at least the sequence's priority from now on.
void Raise(std::optional<int32_t>* highest, const Sequence& sequence) {
  *highest = std::max(*highest, std::optional(PriorityOf(sequence)));  // none is below all
}

}  // namespace

void FairShares::Count(std::span<Sequence* const> running, const std::deque<Sequence*>& waiting, int32_t free) {
  contended_ = false;
  neediest_ = nullptr;
  below_priority_.reset();
  if (shares_.size() < 2) return;
  for (auto& [name, share] : shares_) share = {};
  int32_t places = free;
  for (const Sequence* const sequence : running) {
    if (sequence->state != Sequence::State::kRunning) continue;
    ++places;
    FairShare& share = *sequence->request->share;
    ++share.running;
    if (sequence->prefilling()) Raise(&share.prompt_priority, *sequence);
  }
  for (Sequence* const sequence : waiting) {
    Sequence*& next = sequence->request->share->next;
    if (next == nullptr || PriorityOf(*sequence) > PriorityOf(*next)) next = sequence;
  }
  std::erase_if(shares_, [](const auto& entry) { return entry.second.running == 0 && entry.second.next == nullptr; });
  contended_ = shares_.size() > 1;
  if (!contended_) return;
  part_ = std::max(1, places / static_cast<int32_t>(shares_.size()));
  for (const auto& [name, share] : shares_) {
    if (share.running >= part_ || share.next == nullptr) continue;
    Raise(&below_priority_, *share.next);
    const auto rank = [](const FairShare& of) { return std::tuple(PriorityOf(*of.next), -of.running); };
    if (neediest_ == nullptr || rank(share) > rank(*neediest_)) neediest_ = &share;
  }
  for (const Sequence* const sequence : running) {
    if (sequence->state != Sequence::State::kRunning || sequence->num_forks() == 1) continue;
    if (sequence->request->share->running < part_) Raise(&below_priority_, *sequence);
  }
}

bool FairShares::MayTake(const Sequence& sequence) const {
  return sequence.request->share->running < part_ || PriorityOf(sequence) > below_priority_;
}

void FairShares::DividePrompts(int32_t tokens, bool places_are_free) {
  int32_t sharing = 0;
  first_prompts_ = nullptr;
  first_priority_ = INT32_MIN;
  for (const auto& [name, share] : shares_) {
    std::optional<int32_t> priority = share.prompt_priority;
    if (places_are_free && share.next != nullptr && share.running < part_) Raise(&priority, *share.next);
    if (!priority) continue;
    ++sharing;
    if (*priority == first_priority_) first_prompts_ = nullptr;
    if (*priority <= first_priority_) continue;
    first_prompts_ = &share;
    first_priority_ = *priority;
  }
  part_of_prompts_ = sharing < 2 ? tokens : std::max(kLeastPart, tokens / sharing);
}

int32_t FairShares::PromptTokensFor(const Sequence& sequence) const {
  const FairShare& share = *sequence.request->share;
  if (&share == first_prompts_ && PriorityOf(sequence) == first_priority_) return INT32_MAX;
  return static_cast<int32_t>(std::max<int64_t>(0, part_of_prompts_ - share.prompt_tokens));
}

}  // namespace coppice
