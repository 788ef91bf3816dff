// The exchange of a step and the cache, in order: which branches have queries, the forest and the copies that the step
// needs, that it was launched, that it was computed. A step that goes before that is abandoned: the cache forgets what it should
// have computed. Layer: cache.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "cache/branch_forest.h"
#include "coppice/attention/attention.h"

namespace coppice {

class KvCache;

// A step is scheduled (SetQueries to Take), launched (Launched) and computed (KvCache::MarkComputed, then Computed); the next one
// may be scheduled and launched before it is computed. Steps run in the order of their launches, and so do their writes: what one
// step reads and the caller frees is written again by a later one only. Thread-compatible.
class CacheStep {
 public:
  // No step.
  CacheStep() = default;
  CacheStep(CacheStep&& other) noexcept
      : cache_(std::exchange(other.cache_, nullptr)), launched_(std::exchange(other.launched_, false)) {}
  CacheStep& operator=(CacheStep&& other) noexcept {
    CacheStep taken(std::move(other));
    std::swap(cache_, taken.cache_);
    std::swap(launched_, taken.launched_);
    return *this;
  }
  // Abandons the step where it was not computed, and with a launched one those launched beside it, which read what it wrote.
  // Branches that had queries in them must be released.
  ~CacheStep();

  // This step's queries of a branch; branches that are not named take no part.
  void SetQueries(BranchId branch, int32_t query_begin, int32_t query_count, int32_t kv_len);
  // Whether there are page copies to do.
  bool has_copies() const;

  struct Work {
    attention::PrefixForestView forest;  // spans stay valid until the cache is gone
    // Of whole pages (copy-on-write), in any order, before the step's forward pass. Until the Take of another step.
    std::span<const attention::PageCopy> copies;
  };
  // The step to launch, behind the last SetQueries. The copies are the caller's to do then, whatever becomes of the step.
  Work Take();
  // The step runs: its tokens count as computed for the steps after it, and a branch that computes what others share joins the
  // forest. REQUIRES: Take.
  void Launched();
  // All of its tokens were marked (KvCache::MarkComputed). REQUIRES: Launched.
  void Computed() { cache_ = nullptr; }

 private:
  friend class KvCache;
  explicit CacheStep(KvCache* cache) : cache_(cache) {}

  KvCache* cache_ = nullptr;
  bool launched_ = false;
};

}  // namespace coppice
