#include "cache/cache_step.h"

#include "cache/kv_cache.h"
#include "core/check.h"

namespace coppice {

CacheStep::~CacheStep() {
  if (cache_ == nullptr) return;
  if (launched_) {
    cache_->tree_.Forget(KvProgress::kLaunched);
  } else if (!cache_->prefills_.empty()) {
    cache_->tree_.Forget(KvProgress::kDue);
    cache_->prefills_.clear();
  }
}

void CacheStep::SetQueries(BranchId branch, int32_t query_begin, int32_t query_count, int32_t kv_len) {
  KvCache& cache = *cache_;
  cache.forest_.SetQueries(branch, query_begin, query_count, kv_len);
  if (kv_len > cache.branches_[branch].own_begin || !cache.options_.share) return;
  cache.tree_.Mark(cache.places_[branch].lock.node(), kv_len, KvProgress::kDue);
  cache.prefills_.push_back({.branch = branch, .kv_len = kv_len});
}

bool CacheStep::has_copies() const { return cache_->has_copies(); }

CacheStep::Work CacheStep::Take() {
  cache_->forest_.EndStep();
  cache_->taken_copies_.swap(cache_->pending_copies_);
  cache_->pending_copies_.clear();
  cache_->copied_pages_.DropFrom(0);
  return {.forest = cache_->forest_.View(), .copies = cache_->taken_copies_};
}

void CacheStep::Launched() {
  COPPICE_DCHECK(!launched_);
  KvCache& cache = *cache_;
  for (const auto& [id, kv_len] : cache.prefills_) {
    KvCache::Place& place = cache.places_[id];
    cache.tree_.Mark(place.lock.node(), kv_len, KvProgress::kLaunched);
    // A branch of an older weight version computes KV that differs from the KV that others read there: it stays apart.
    if (place.joins_at == 0 || kv_len < place.joins_at || !cache.IsCurrent(id)) continue;
    place.joins_at = 0;
    cache.forest_.Unlink(id);
    cache.forest_.Link(id, place.lock.node(), kv_len);
  }
  cache.prefills_.clear();
  launched_ = true;
}

}  // namespace coppice
