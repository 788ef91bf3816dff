#include "engine/constraint_masks.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <ctime>
#include <span>
#include <tuple>
#include <utility>

#include "core/check.h"

namespace coppice {

namespace {

// CPU time that this thread has taken: other work of the machine does not count.
int64_t ThreadNanoseconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

}  // namespace

int64_t ConstraintMasks::MostOfAStep() const { return int64_t{125'000'000} * executor_->num_workers(); }

ConstraintMasks::Clock::duration ConstraintMasks::PauseAfter(const Share& share) const {
  constexpr auto kLittle = std::chrono::microseconds(500);
  const auto taken = std::chrono::nanoseconds(share.cpu_ns / executor_->num_workers());
  return taken > kLittle ? Clock::duration(4 * taken) : Clock::duration::zero();
}

void ConstraintMasks::Fill(ScheduledBatch* batch) {
  shares_.clear();
  FindMembers(*batch);
  if (members_.empty()) return;
  FindGroups();
  const auto count = static_cast<int64_t>(groups_.size());
  const auto words = static_cast<size_t>(MaskWords(vocab_size_));
  StepBatch& step = batch->step;
  step.masks.resize(groups_.size() * words);
  batch->masks.resize(groups_.size());
  for (int64_t m = 0; m < count; ++m) {
    for (size_t i = groups_[m].begin; i < groups_[m].end; ++i) {
      const ScheduledBatch::Entry& entry = *members_[i].entry;
      for (int32_t d = 0; d < entry.num_draws; ++d) step.draws[entry.first_draw + d].mask = static_cast<int32_t>(m);
    }
  }
  // First the copies, as what they are copies of moves on then.
  if (std::ranges::any_of(groups_, &Group::splits)) {
    executor_->ParallelFor(count, [&](int64_t m, int) {
      if (!groups_[m].splits) return;
      const SharedConstraint& from = *groups_[m].state;
      groups_[m].state = std::make_shared<SharedConstraint>(from.state->Clone(), from.accepted);
    });
  }
  for (const Group& group : groups_) {
    for (size_t i = group.begin; i < group.end; ++i) members_[i].entry->sequence->constraint = group.state;
  }
  executor_->ParallelFor(
      count, [&](int64_t m, int) { FillOne(groups_[m], std::span(step.masks).subspan(m * words, words), &batch->masks[m]); });
  for (Group& group : groups_) group.state.reset();
}

void ConstraintMasks::FindMembers(const ScheduledBatch& batch) {
  members_.clear();
  for (const ScheduledBatch::Entry& entry : batch.entries) {
    const Sequence& sequence = *entry.sequence;
    if (entry.num_draws == 0 || !sequence.request->has_constraint) continue;
    SharedConstraint& state = *sequence.constraint;
    const auto unknown = static_cast<int32_t>(sequence.generated.size()) - state.accepted;
    COPPICE_DCHECK(unknown == 0 || unknown == 1);
    members_.push_back({.entry = &entry, .state = &state, .token = unknown > 0 ? sequence.generated.back() : -1});
  }
  std::ranges::sort(members_, [](const Member& a, const Member& b) {
    const auto rank = [](const Member& member) {
      return std::tuple(member.entry->sequence->request->id, member.state, member.token, member.entry->sequence->index);
    };
    return rank(a) < rank(b);
  });
}

void ConstraintMasks::FindGroups() {
  groups_.clear();
  owners_.clear();
  const auto end_of = [&](size_t begin, auto member_is_alike) {
    size_t end = begin + 1;
    while (end < members_.size() && member_is_alike(members_[begin], members_[end])) ++end;
    return end;
  };
  const RequestState* request = nullptr;
  size_t owner = 0;
  for (size_t begin = 0, state_end = 0; begin < members_.size(); begin = state_end) {
    const Sequence& first = *members_[begin].entry->sequence;
    if (std::exchange(request, first.request) != first.request) owner = OwnerOf(*first.request);
    state_end = end_of(begin, [](const Member& a, const Member& b) { return a.state == b.state; });
    // The last group gets the state itself, where no other sample needs it as it is.
    const bool is_free = members_[begin].token >= 0 && first.constraint.use_count() == static_cast<long>(state_end - begin);
    for (size_t group_end = 0; begin < state_end; begin = group_end) {
      group_end = end_of(begin, [](const Member& a, const Member& b) { return a.state == b.state && a.token == b.token; });
      groups_.push_back({.begin = begin,
                         .end = group_end,
                         .owner = owner,
                         .splits = members_[begin].token >= 0 && !(is_free && group_end == state_end),
                         .state = members_[begin].entry->sequence->constraint});
    }
  }
}

size_t ConstraintMasks::OwnerOf(const RequestState& request) {
  const TokenConstraint* const constraint = request.params.constraint.get();
  const size_t share = ShareOf(request);
  const auto same = [&](const Owner& owner) { return owner.constraint == constraint && owner.share == share; };
  const auto found = std::ranges::find_if(owners_, same);
  const auto index = static_cast<size_t>(found - owners_.begin());
  if (found == owners_.end()) owners_.push_back({.constraint = constraint, .share = share});
  return index;
}

size_t ConstraintMasks::ShareOf(const RequestState& request) {
  const auto found = std::ranges::find(shares_, request.params.share_of, &Share::share_of);
  const auto index = static_cast<size_t>(found - shares_.begin());
  if (found == shares_.end()) shares_.push_back({.share_of = request.params.share_of});
  return index;
}

void ConstraintMasks::FillOne(const Group& group, std::span<uint32_t> mask, ScheduledBatch::ConstraintMask* result) {
  const std::atomic_ref is_slow(owners_[group.owner].is_slow);
  const std::atomic_ref taken(shares_[owners_[group.owner].share].cpu_ns);
  const Member& member = members_[group.begin];
  ConstraintState& state = *group.state->state;
  const auto fill = [&]() -> Result<bool> {
    if (is_slow.load(std::memory_order_relaxed))
      return ResourceExhausted("another sample's next token took too long to find under the same constraint: make it simpler");
    if (taken.load(std::memory_order_relaxed) > MostOfAStep()) {
      return ResourceExhausted(
          "the next tokens of samples under constraints took too long to find together: make these simpler, or ask for fewer "
          "samples "
          "or requests at a time");
    }
    if (member.token >= 0) {
      COPPICE_RETURN_IF_ERROR(state.Accept(member.token));
      ++group.state->accepted;
    }
    return state.FillMask(mask);
  };
  const int64_t begin = ThreadNanoseconds();
  const Result<bool> may_end = fill();
  taken.fetch_add(ThreadNanoseconds() - begin, std::memory_order_relaxed);
  const bool exhausted = may_end.status().code() == StatusCode::kResourceExhausted;
  if (exhausted) is_slow.store(true, std::memory_order_relaxed);
  // Of the caller's constraint: a sample that ends for want of the engine's own memory has RESOURCE_EXHAUSTED.
  *result = {.may_end = may_end.ok() && *may_end,
             .status = exhausted ? InvalidArgument(may_end.status().message()) : may_end.status()};
  if (!may_end.ok()) std::ranges::fill(mask, 0u);
  if (!result->may_end) return;
  for (const int32_t id : *member.entry->sequence->request->end_ids) mask[id / 32] |= uint32_t{1} << id % 32;
}

}  // namespace coppice
