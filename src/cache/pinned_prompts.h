// Prompts that stay in the cache under names until they are unpinned: a part of KvCache. Layer: cache.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/branch_forest.h"
#include "cache/node_lock.h"
#include "cache/page_pool.h"
#include "cache/salt_ids.h"
#include "coppice/core/status.h"

namespace coppice {

class KvCache;

// Pages of a pinned prompt count as in use. Thread-compatible. REQUIRES: KvCache::Options::share.
class PinnedPrompts {
 public:
  // `cache` outlives the object.
  explicit PinnedPrompts(KvCache* cache) : cache_(*cache) {}
  PinnedPrompts(const PinnedPrompts&) = delete;

  // Keeps the branch's prompt, which is computed. A pin of the same name is moved. False, and nothing changes, where the prompt's
  // KV is of weights before the last KvCache::Retire.
  [[nodiscard]] bool Pin(const std::string& name, BranchId branch);
  // False if there is no pin of that name.
  bool Unpin(const std::string& name);

  // A pinned prompt: its tokens, the pages that hold them, in order, and its salt. Its tenant and its owner are the caller's to
  // know.
  struct Prompt {
    std::vector<int32_t> tokens;
    std::vector<PageId> pages;
    std::string salt;
    int32_t private_begin = 0;  // 0 without a salt
  };
  std::optional<Prompt> Find(const std::string& name) const;
  // Puts a prompt whose KV comes from elsewhere into the cache and pins it. Tokens that are cached already are kept; for the rest
  // `write(pages, begin)` must fill the pages of the tokens from `begin` (where a page begins) on. Nothing changes on an error:
  // write's own, RESOURCE_EXHAUSTED (no room), or UNAVAILABLE (a request computes a part of this prompt right now).
  // REQUIRES: 1..max_context tokens.
  Status Restore(const std::string& name, std::span<const int32_t> tokens, const CacheSalt& salt,
                 const std::function<Status(std::span<const PageId>, int32_t)>& write);

  bool empty() const { return locks_.empty(); }
  void Clear() { locks_.clear(); }
  // By name, on the last node of each prompt.
  const std::map<std::string, NodeLock, std::less<>>& locks() const { return locks_; }

 private:
  KvCache& cache_;
  std::map<std::string, NodeLock, std::less<>> locks_;
};

}  // namespace coppice
