#include "engine/admission_order.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <tuple>

namespace coppice {
namespace {

// Tokens from here on cannot be shared between the two salts.
int32_t SharedLimit(const CacheSalt& a, const CacheSalt& b) {
  const auto salt_begin = [](const CacheSalt& s) { return s.salt.empty() ? INT32_MAX : s.private_begin; };
  const auto tenant_begin = [&](const CacheSalt& s) {  // a tenant's salt is its own
    return s.tenant.empty() ? INT32_MAX : std::min(s.tenant_begin, salt_begin(s));
  };
  const auto first = [](int32_t begin_a, int32_t begin_b, bool same) {
    return same && begin_a == begin_b ? INT32_MAX : std::min(begin_a, begin_b);
  };
  return std::min(first(tenant_begin(a), tenant_begin(b), a.tenant == b.tenant),
                  first(salt_begin(a), salt_begin(b), a.salt == b.salt));
}

// Below 0: a stands before b; 0: neither has tokens that the other has not.
int Compare(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  // By bytes: which order it is does not matter, and this is the fast one.
  const int order = std::memcmp(a.data(), b.data(), std::min(a.size(), b.size()) * sizeof(int32_t));
  return order != 0 || a.size() == b.size() ? order : a.size() < b.size() ? -1 : 1;
}

auto OwnersOf(const Request& request) {
  return std::tie(request.cache_tenant.name, request.cache_salt, request.cache_tenant.begin, request.cache_private_begin);
}

bool AreEqual(const Request& a, const Request& b) {
  return a.share_of == b.share_of && OwnersOf(a) == OwnersOf(b) && Compare(a.prompt_ids, b.prompt_ids) == 0;
}

// Tokens that two sequences can share, of those that are given.
int32_t SharedTokens(std::span<const int32_t> tokens, const CacheSalt& salt, std::span<const int32_t> others,
                     const CacheSalt& other_salt) {
  const auto differs = std::mismatch(tokens.begin(), tokens.end(), others.begin(), others.end()).first;
  return std::min(static_cast<int32_t>(differs - tokens.begin()), SharedLimit(salt, other_salt));
}
// Of their prompts.
int32_t SharedTokens(const Sequence& a, const Sequence& b) {
  return SharedTokens(a.request->params.prompt_ids, SaltOf(a), b.request->params.prompt_ids, SaltOf(b));
}

}  // namespace

bool AdmissionOrder::BeforeInText::operator()(const Sequence* a, const Sequence* b) const {
  const Request& first = a->request->params;
  const Request& second = b->request->params;
  if (const auto order = OwnersOf(first) <=> OwnersOf(second); order != 0) return order < 0;
  if (const int order = Compare(first.prompt_ids, second.prompt_ids); order != 0) return order < 0;
  if (const int order = first.share_of.compare(second.share_of); order != 0) return order < 0;
  return a->arrival < b->arrival;
}

void AdmissionOrder::Add(Sequence* sequence) {
  RequestState& request = *sequence->request;
  const Request& params = request.params;
  request.virtual_start = turns_.Join(params.share_of, request.prompt_length() + int64_t{params.n} * params.max_tokens);
  const auto before = [&](const Sequence* other) {
    const RequestState& ahead = *other->request;
    return ahead.has_begun() || ahead.params.priority > params.priority ||
           (ahead.params.priority == params.priority && ahead.virtual_start <= request.virtual_start);
  };
  auto place = line_.end();
  while (place != line_.begin() && !before(*std::prev(place))) --place;
  line_.insert(place, sequence);
  EnterTexts(sequence);
  if (line_.size() <= kWindow) return;  // it is compared anyway
  Candidate newcomer = {.sequence = sequence};
  FindOverlap(&newcomer);
  if (newcomer.overlap.running > 0) Follow(sequence, newcomer.overlap.running);
}

void AdmissionOrder::AddToFront(Sequence* sequence, size_t place) {
  line_.insert(line_.begin() + static_cast<std::ptrdiff_t>(place), sequence);
}

void AdmissionOrder::AddBehindBegun(Sequence* sequence) {
  const auto is_new = [](const Sequence* other) { return !other->request->has_begun(); };
  line_.insert(std::ranges::find_if(line_, is_new), sequence);
}

void AdmissionOrder::Remove(Sequence* sequence) {
  line_.erase(std::ranges::find(line_, sequence));
  if (sequence->follows) {  // others take its place
    VisitNeighbours(sequence, [&](Sequence* neighbour) { Follow(neighbour, SharedTokens(*sequence, *neighbour)); });
  }
  LeaveTexts(sequence);
}

void AdmissionOrder::Clear() {
  line_.clear();
  texts_.clear();
  followers_.clear();
  candidates_.clear();
}

void AdmissionOrder::EnterTexts(Sequence* sequence) {
  sequence->arrival = ++arrivals_;
  const auto place = texts_.insert(sequence).first;
  if (place != texts_.begin()) {  // it stands behind its equals
    const Sequence* const before = *std::prev(place);
    if (AreEqual(before->request->params, sequence->request->params)) sequence->text_group = before->text_group;
  }
  if (!sequence->text_group) sequence->text_group = std::make_shared<TextGroup>();
  sequence->text_group->forks += sequence->num_forks();
}

void AdmissionOrder::LeaveTexts(Sequence* sequence) {
  if (!sequence->text_group) return;
  sequence->text_group->forks -= sequence->num_forks();
  sequence->text_group.reset();
  texts_.erase(sequence);
  if (std::exchange(sequence->follows, false))
    std::erase_if(followers_, [&](const Follower& other) { return other.sequence == sequence; });
}

template <class Visit>
void AdmissionOrder::VisitNeighbours(Sequence* sequence, const Visit& visit) {
  auto place = texts_.lower_bound(sequence);
  if (place != texts_.begin()) visit(*std::prev(place));
  if (place != texts_.end() && *place == sequence) ++place;
  if (place != texts_.end()) visit(*place);
}

void AdmissionOrder::Follow(Sequence* sequence, int32_t shared) {
  if (shared == 0 || !sequence->text_group) return;
  if (sequence->follows) {
    Follower& follower = *std::ranges::find(followers_, sequence, &Follower::sequence);
    follower.shared = std::max(follower.shared, shared);
    return;
  }
  if (followers_.size() == kMostFollowers) {
    const auto least = std::ranges::min_element(followers_, {}, &Follower::shared);
    if (least->shared >= shared) return;
    least->sequence->follows = false;
    followers_.erase(least);
  }
  followers_.push_back({.sequence = sequence, .shared = shared});
  sequence->follows = true;
}

void AdmissionOrder::FindOverlap(Candidate* candidate) {
  Sequence* const sequence = candidate->sequence;
  candidate->overlap = cache_.FindOverlap(sequence->Tokens(&scratch_), SaltOf(*sequence), &sequence->found);
}

void AdmissionOrder::FindOverlaps() {
  for (Candidate& candidate : candidates_) FindOverlap(&candidate);
}

AdmissionOrder::Candidate AdmissionOrder::TakeBest() {
  const auto worse = [](const Candidate& a, const Candidate& b) {
    const auto rank = [](const Candidate& candidate) {
      const int32_t priority = candidate.sequence->request->params.priority;
      return std::tuple(candidate.aged, priority, candidate.overlap.running, candidate.overlap.cached);
    };
    return rank(a) < rank(b);
  };
  const auto best = std::max_element(candidates_.begin(), candidates_.end(), worse);
  taken_ = *best;
  candidates_.erase(best);
  return taken_;
}

void AdmissionOrder::KeepPlacesFor(const Sequence& sequence) {
  if (!sequence.text_group) {
    kept_places_ += sequence.num_forks();
  } else if (std::exchange(sequence.text_group->kept_for, round_) != round_) {
    kept_places_ += sequence.text_group->forks;
  }
}

void AdmissionOrder::Admitted(Sequence* sequence) {
  // As long as earlier turns wait, it is theirs: a newcomer stands beside them, not behind all that a group has overtaken.
  int64_t virtual_start = sequence->request->virtual_start;
  for (const Candidate& candidate : candidates_) {
    if (candidate.sequence->text_group) virtual_start = std::min(virtual_start, candidate.sequence->request->virtual_start);
  }
  turns_.Serve(virtual_start);
  const bool called = sequence->arrival <= sequence->called_until;
  const uint64_t calls_until = called ? sequence->called_until : arrivals_;
  for (const Candidate& candidate : candidates_) {
    if (candidate.place >= taken_.place) continue;
    const bool follows = called && candidate.sequence->request->params.share_of == sequence->request->params.share_of;
    candidate.sequence->overtaken += follows ? 1 : kOvertaking;
  }
  line_.erase(std::ranges::find(line_, sequence));
  const bool is_new = sequence->text_group != nullptr;
  LeaveTexts(sequence);
  // The text that the other candidates share with it runs now. They know all of a text that ran before.
  if (taken_.overlap.running < sequence->length()) {
    const std::span<const int32_t> tokens = sequence->Tokens(&scratch_);
    const CacheSalt salt = SaltOf(*sequence);
    for (Candidate& candidate : candidates_) {
      const int32_t shared = SharedTokens(tokens, salt, candidate.sequence->Tokens(&other_scratch_), SaltOf(*candidate.sequence));
      candidate.overlap.running = std::max(candidate.overlap.running, shared);
    }
  }
  if (!is_new) return;
  VisitNeighbours(sequence, [&](Sequence* neighbour) {
    const int32_t shared = SharedTokens(*sequence, *neighbour);
    Follow(neighbour, shared);
    if (2 * shared >= neighbour->length()) neighbour->called_until = std::max(neighbour->called_until, calls_until);
    if (neighbour->round == round_ || !neighbour->follows) return;
    AddCandidate(neighbour, kBehindWindow);
    FindOverlap(&candidates_.back());
  });
}

}  // namespace coppice
