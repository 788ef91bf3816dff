#include "engine/admission_order.h"

#include <algorithm>
#include <iterator>
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

}  // namespace

void AdmissionOrder::Add(Sequence* sequence) {
  RequestState& request = *sequence->request;
  const Request& params = request.params;
  request.turn = turns_.Join(params.share_of, request.prompt_length() + int64_t{params.n} * params.max_tokens);
  const auto before = [&](const Sequence* other) {
    const RequestState& ahead = *other->request;
    return ahead.has_begun() || ahead.params.priority > params.priority ||
           (ahead.params.priority == params.priority && ahead.turn <= request.turn);
  };
  auto place = line_.end();
  while (place != line_.begin() && !before(*std::prev(place))) --place;
  line_.insert(place, sequence);
}

void AdmissionOrder::AddToFront(Sequence* sequence, size_t place) {
  line_.insert(line_.begin() + static_cast<std::ptrdiff_t>(place), sequence);
}

void AdmissionOrder::AddBehindBegun(Sequence* sequence) {
  const auto is_new = [](const Sequence* other) { return !other->request->has_begun(); };
  line_.insert(std::ranges::find_if(line_, is_new), sequence);
}

void AdmissionOrder::Remove(const Sequence* sequence) { line_.erase(std::ranges::find(line_, sequence)); }

void AdmissionOrder::Clear() {
  line_.clear();
  candidates_.clear();
}

void AdmissionOrder::FindOverlaps() {
  for (Candidate& candidate : candidates_) {
    Sequence* const sequence = candidate.sequence;
    candidate.overlap = cache_.FindOverlap(sequence->Tokens(&scratch_), SaltOf(*sequence), &sequence->found);
  }
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
  const Candidate taken = *best;
  candidates_.erase(best);
  return taken;
}

void AdmissionOrder::Admitted(const Sequence& sequence) {
  turns_.Serve(sequence.request->turn);
  const auto place = std::ranges::find(line_, &sequence);
  for (auto earlier = line_.begin(); earlier != place; ++earlier) ++(*earlier)->overtaken;
  line_.erase(place);
  // What the other candidates share with it runs now.
  const std::span<const int32_t> tokens = sequence.Tokens(&scratch_);
  const CacheSalt salt = SaltOf(sequence);
  for (Candidate& candidate : candidates_) {
    const std::span<const int32_t> other = candidate.sequence->Tokens(&other_scratch_);
    const auto differs = std::mismatch(tokens.begin(), tokens.end(), other.begin(), other.end()).first;
    const int32_t equal = static_cast<int32_t>(differs - tokens.begin());
    const int32_t shared = std::min(equal, SharedLimit(salt, SaltOf(*candidate.sequence)));
    candidate.overlap.running = std::max(candidate.overlap.running, shared);
  }
}

}  // namespace coppice
