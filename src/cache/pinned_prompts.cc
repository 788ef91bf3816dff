#include "cache/pinned_prompts.h"

#include <algorithm>
#include <utility>

#include "cache/kv_cache.h"
#include "core/check.h"
#include "core/math.h"

namespace coppice {

bool PinnedPrompts::Pin(const std::string& name, BranchId id) {
  const KvCache::Branch& branch = cache_.branches_[id];
  COPPICE_CHECK(cache_.options_.share && branch.in_use && branch.computed >= branch.own_begin);
  if (!cache_.IsCurrent(id)) return false;
  locks_.insert_or_assign(name, NodeLock(&cache_.tree_, cache_.places_[id].lock.node()));
  return true;
}

bool PinnedPrompts::Unpin(const std::string& name) {
  const auto pin = locks_.find(name);
  if (pin == locks_.end()) return false;
  locks_.erase(pin);
  return true;
}

std::optional<PinnedPrompts::Prompt> PinnedPrompts::Find(const std::string& name) const {
  const auto pin = locks_.find(name);
  if (pin == locks_.end()) return std::nullopt;
  Prompt prompt;
  const int32_t end = cache_.tree_.node(pin->second.node()).end(), page_size = cache_.pages_.page_size();
  prompt.tokens.resize(end);
  prompt.pages.assign(CeilDiv(end, page_size), kNoPage);
  prompt.private_begin = 0;
  for (NodeId id = pin->second.node(); id != kRootNode; id = cache_.tree_.node(id).parent) {
    const PrefixTree::Node& node = cache_.tree_.node(id);
    std::copy(node.tokens.begin(), node.tokens.end(), prompt.tokens.begin() + node.begin);
    for (size_t i = 0; i < node.pages.size(); ++i) {  // where two nodes meet inside a page, the lower one's holds both
      PageId& page = prompt.pages[node.begin / page_size + i];
      if (page == kNoPage) page = node.pages[i];
    }
    if (node.salt == 0) continue;
    const std::string& salt = cache_.salts_.SaltOf(node.salt);
    if (salt.empty()) continue;  // all of the tenant's
    prompt.private_begin = node.begin;
    prompt.salt = salt;
  }
  return prompt;
}

Status PinnedPrompts::Restore(const std::string& name, std::span<const int32_t> tokens, const CacheSalt& salt_text,
                              const std::function<Status(std::span<const PageId>, int32_t)>& write) {
  const int32_t num_tokens = static_cast<int32_t>(tokens.size()), page_size = cache_.pages_.page_size();
  COPPICE_CHECK(cache_.options_.share && num_tokens >= 1 && num_tokens <= cache_.options_.max_context);
  const SaltRange salt = cache_.Intern(salt_text);
  const PrefixTree::Match match = cache_.tree_.Find(tokens, salt);
  if (match.ready < match.length) {
    return Unavailable("a running request computes a part of the prefix right now: try again when it is done");
  }
  const NodeId above = cache_.Split(match);
  NodeLock lock(&cache_.tree_, above);  // before anything is evicted for the prefix
  if (match.length < num_tokens) {
    // Whole new pages, the one in which the match ends included: `write` has all their tokens, so nothing is copied.
    const int32_t first = match.length / page_size, needed = CeilDiv(num_tokens, page_size) - first;
    const int32_t available = cache_.pages_.num_pages() - cache_.pages_.num_in_use();
    if (needed > available) {
      return ResourceExhausted("the prefix needs " + std::to_string(needed) + " pages of KV and " + std::to_string(available) +
                               " are to be had: raise kv_cache_bytes or wait until less is running");
    }
    PageRefs fresh(&cache_.pages_);
    const bool have_pages = cache_.AppendFreshPages(first, first + needed, &fresh);
    COPPICE_CHECK(have_pages);  // counted above
    COPPICE_RETURN_IF_ERROR(write(fresh.ids(), first * page_size));
    lock = NodeLock(&cache_.tree_,
                    cache_.AddPath(above, tokens.subspan(match.length), match.length, salt, std::move(fresh), num_tokens));
  }
  locks_.insert_or_assign(name, std::move(lock));
  return OkStatus();
}

}  // namespace coppice
