// In which order sequences that wait are taken in. Its policies by name, each decisive where those before it say nothing:
//   line      by priority, then by virtual start: fair between names (fair_queue.h), first come first served within one. A sequence
//   that was
//             admitted before and gave way, and samples of a prompt that is computed, stand before all new ones.
//   window    the first kWindow in the queue that may come now are compared, and with them the followers: of all that wait,
//   wherever they
//             stand, those next to what was admitted in the order of texts. Bounds the cost of matching prompts.
//   aged      one that was overtaken for long goes first, so that none starves.
//   sharing   within a priority, what shares most with running samples, then what finds most in the cache: the one is read once for
//             all of them, the other need not be computed.
//   groups    while a sequence waits for an equal prompt in flight, places are kept for its samples and those of all that wait with
//             the same prompt: a group runs together, or it reads apart.
// Whether there is room is the scheduler's affair, which names share places fair_shares.h's. Layer: engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/fair_queue.h"
#include "engine/request_state.h"

namespace coppice {

// New sequences in the queue that have the same text, salt, tenant and name.
struct TextGroup {
  int32_t forks = 0;      // of all of them
  uint64_t kept_for = 0;  // the last round that kept places for them
};

// Thread-compatible.
class AdmissionOrder {
 public:
  // `cache` outlives the order.
  explicit AdmissionOrder(const KvCache* cache) : cache_(*cache) {}

  // ---- line

  const std::deque<Sequence*>& line() const { return line_; }
  // A new request's first sequence. O(log n) comparisons of texts, and of turns as many as stand behind it.
  void Add(Sequence* sequence);
  // One that was admitted before, or a sample of a prompt that was: behind the first `place` in the queue.
  void AddToFront(Sequence* sequence, size_t place = 0);
  // One of a request that has begun: behind all of those, before all new ones.
  void AddBehindBegun(Sequence* sequence);
  void Remove(Sequence* sequence);
  void Clear();

  // ---- candidates, in rounds

  struct Candidate {
    Sequence* sequence = nullptr;
    int32_t place = 0;  // in the queue; of followers behind the window, behind all others
    bool aged = false;
    KvCache::Overlap overlap{};  // with the tree, and with what was admitted in this round
  };
  // Begins a round with the window of those for which `may_come` is true, and the followers.
  template <class MayCome>
  void FindCandidates(const MayCome& may_come) {
    candidates_.clear();
    kept_places_ = 0;
    ++round_;
    int32_t place = 0;
    for (Sequence* const sequence : line_) {
      if (may_come(*sequence)) AddCandidate(sequence, place);
      if (candidates_.size() == kWindow) break;
      ++place;
    }
    for (const Follower& follower : followers_) {
      if (follower.sequence->round != round_ && may_come(*follower.sequence)) AddCandidate(follower.sequence, kBehindWindow);
    }
    if (candidates_.size() > 1) FindOverlaps();  // one needs no comparison
  }
  bool has_candidates() const { return !candidates_.empty(); }
  // The best candidate, which is one no longer; of equals the first in the queue. REQUIRES: there is one.
  Candidate TakeBest();
  // Whether the free places are kept for groups. A sequence whose whole text runs already belongs to one.
  bool KeepsPlacesFrom(const Candidate& candidate) const {
    return !candidate.aged && cache_.free_branches() <= kept_places_ && candidate.overlap.running < candidate.sequence->length();
  }
  // The sequence waits for a prompt in flight.
  void KeepPlacesFor(const Sequence& sequence);
  // The sequence, which TakeBest gave last, was taken in. Those next to it in the order of texts become candidates.
  void Admitted(Sequence* sequence);

 private:
  static constexpr size_t kWindow = 32, kMostFollowers = 64;
  static constexpr int32_t kBehindWindow = INT32_MAX;
  // Sequence::overtaken counts kOvertaking for one that was admitted before its turn, and 1 for one that was called, of its own
  // name: that shares half of its text at least with one admitted as any other is, and was waiting then, or with one called by
  // that. So a group goes together, and 32 others at most before their turn.
  static constexpr int32_t kOvertaking = 32, kMostOvertaken = 32 * kOvertaking;

  struct Follower {
    Sequence* sequence = nullptr;
    int32_t shared = 0;  // tokens with what made it one
  };
  // Texts with much in common stand next to each other, and equal ones of a name in the order of their arrival.
  struct BeforeInText {
    bool operator()(const Sequence* a, const Sequence* b) const;
  };
  using TextOrder = std::set<Sequence*, BeforeInText>;

  void AddCandidate(Sequence* sequence, int32_t place) {
    sequence->round = round_;
    candidates_.push_back({.sequence = sequence, .place = place, .aged = sequence->overtaken >= kMostOvertaken});
  }
  void FindOverlaps();
  void FindOverlap(Candidate* candidate);
  void EnterTexts(Sequence* sequence);
  // It is no follower any more either.
  void LeaveTexts(Sequence* sequence);
  // Calls visit(sequence) with those next to a text, which may stand in the order itself.
  template <class Visit>
  void VisitNeighbours(Sequence* sequence, const Visit& visit);
  void Follow(Sequence* sequence, int32_t shared);

  const KvCache& cache_;
  FairQueue turns_;
  std::deque<Sequence*> line_;
  TextOrder texts_;  // of new sequences in the queue
  std::vector<Follower> followers_;
  std::vector<Candidate> candidates_;
  Candidate taken_;  // by TakeBest
  uint64_t arrivals_ = 0, round_ = 0;
  int32_t kept_places_ = 0;
  std::vector<int32_t> scratch_, other_scratch_;
};

}  // namespace coppice
