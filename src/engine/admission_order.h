// In which order sequences that wait are taken in. Its policies by name, each decisive where those before it say nothing:
//   line      by priority, then by turn: fair between names (fair_queue.h), first come first served within one. A sequence that was
//             admitted before and gave way, and samples of a prompt that is computed, stand before all new ones.
//   window    the first kWindow in line that may come now are compared. Bounds the cost of matching prompts.
//   aged      one that was overtaken kMostOvertaken times goes first, so that none starves.
//   sharing   within a priority, what shares most with running samples, then what finds most in the cache: the one is read once for
//             all of them, the other need not be computed.
//   groups    while a sequence waits for an equal prompt in flight, places are kept for its samples: a group runs together, or it
//             reads apart.
// Whether there is room is the scheduler's affair, which names share places fair_shares.h's. Layer: engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/fair_queue.h"
#include "engine/request_state.h"

namespace coppice {

// Thread-compatible.
class AdmissionOrder {
 public:
  // `cache` outlives the order.
  explicit AdmissionOrder(const KvCache* cache) : cache_(*cache) {}

  // ---- line

  const std::deque<Sequence*>& line() const { return line_; }
  // A new request's first sequence.
  void Add(Sequence* sequence);
  // One that was admitted before, or a sample of a prompt that was: behind the first `place` in line.
  void AddToFront(Sequence* sequence, size_t place = 0);
  // One of a request that has begun: behind all of those, before all new ones.
  void AddBehindBegun(Sequence* sequence);
  void Remove(const Sequence* sequence);
  void Clear();

  // ---- candidates, in rounds

  struct Candidate {
    Sequence* sequence = nullptr;
    bool aged = false;
    KvCache::Overlap overlap{};  // with the tree, and with what was admitted in this round
  };
  // Begins a round with the window of those for which `may_come` is true.
  template <class MayCome>
  void FindCandidates(const MayCome& may_come) {
    candidates_.clear();
    kept_places_ = 0;
    for (Sequence* const sequence : line_) {
      if (!may_come(*sequence)) continue;
      candidates_.push_back({.sequence = sequence, .aged = sequence->overtaken >= kMostOvertaken});
      if (candidates_.size() == kWindow) break;
    }
    if (candidates_.size() > 1) FindOverlaps();  // one needs no comparison
  }
  bool has_candidates() const { return !candidates_.empty(); }
  // The best candidate, which is one no longer; of equals the first in line. REQUIRES: there is one.
  Candidate TakeBest();
  // Whether the free places are kept for groups.
  bool KeepsPlacesFrom(const Candidate& candidate) const { return !candidate.aged && cache_.free_branches() <= kept_places_; }
  // The sequence waits for a prompt in flight.
  void KeepPlacesFor(const Sequence& sequence) { kept_places_ += sequence.num_forks(); }
  // The sequence was taken in.
  void Admitted(const Sequence& sequence);

 private:
  static constexpr size_t kWindow = 32;
  static constexpr int32_t kMostOvertaken = 32;

  void FindOverlaps();

  const KvCache& cache_;
  FairQueue turns_;
  std::deque<Sequence*> line_;
  std::vector<Candidate> candidates_;
  int32_t kept_places_ = 0;
  std::vector<int32_t> scratch_, other_scratch_;
};

}  // namespace coppice
