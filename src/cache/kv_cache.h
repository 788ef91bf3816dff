// The cache as the engine sees it: branches (running sequences) are admitted, forked, grown and released; what they share is found,
// kept and evicted behind it. It plans pages and copies; runner/kv_pool.h holds the memory. Knows no requests and no model.
// Layer: cache. docs/engine.md, "The cache"; one copy of shared KV and n leaves: Hydragen section 3, Bifurcated Attention
// section 4.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/branch_forest.h"
#include "cache/cache_step.h"
#include "cache/node_lock.h"
#include "cache/page_pool.h"
#include "cache/page_refs.h"
#include "cache/pinned_prompts.h"
#include "cache/prefix_tree.h"
#include "cache/salt_ids.h"
#include "coppice/attention/attention.h"
#include "coppice/core/status.h"
#include "core/divisor.h"

namespace coppice {

// The exchange of a step and the cache is cache_step.h's. Thread-compatible. Every call leaves the cache consistent, failed
// ones included; but one that throws, for want of memory, leaves it fit for Clear alone.
class KvCache {
 public:
  struct Options {
    int32_t num_pages = 0, page_size = 16;
    int32_t max_branches = 0;
    int32_t max_context = 0;  // tokens of a branch
    bool share = true;        // false: SharingMode::kNone, a copy per branch and nothing kept
  };
  static Result<std::unique_ptr<KvCache>> Create(const Options& options);

  // ---- branches

  enum class Outcome : uint8_t {
    kAdmitted,
    kNoRoom,   // not enough pages or branch slots now
    kPending,  // another branch is to compute a part of this prompt in a later step; wait for it
  };
  struct Admission {
    Outcome outcome = Outcome::kNoRoom;
    BranchId branch = kNoBranch;
    int32_t cached = 0;    // tokens whose KV is there already, or will be when this step's copies are done
    int32_t computed = 0;  // where the forward pass has to begin: at least the last token is computed for its logits
  };
  struct AdmitArgs {
    std::span<const int32_t> tokens;  // at least one, at most max_context
    CacheSalt salt;
    // The caller needs the forward of every token from here on (prompt log-probabilities), cached or not.
    int32_t compute_from = std::numeric_limits<int32_t>::max();
    int32_t spare_pages = 0;               // admit only if this many pages stay obtainable
    PrefixTree::Cursor* cursor = nullptr;  // as FindOverlap's; may be null
  };
  // How much of a prompt is in the tree.
  struct Overlap {
    int32_t cached = 0;   // tokens that are cached or announced
    int32_t running = 0;  // of them, those on the path of a running branch
    int32_t ready = 0;    // of them, those that are computed
  };
  // `cursor`, new or of the same prompt and salt, remembers where the prompt was found: looking again costs what the tree has more
  // of it, or O(tokens) where it has lost some.
  Overlap FindOverlap(std::span<const int32_t> tokens, const CacheSalt& salt, PrefixTree::Cursor* cursor) const;
  // Starts a branch. Its tokens are announced in the tree at once, so that equal prompts in flight wait and then share. Tokens that
  // branches with queries in this step compute (CacheStep) count as cached: within a step, a layer stores all KV before it reads
  // any. REQUIRES: such branches' queries come first in the batch.
  Admission Admit(const AdmitArgs& args);
  // A branch that begins with the first `kv_len` tokens of another one: whole pages are shared, the open one is copied, here or by
  // the first Grow. kNoBranch when slots or pages are lacking. Without sharing all pages are copied. Source pages stay there until
  // the step that copies them was launched.
  // REQUIRES: these tokens are computed and no copies to their pages are pending; or they are all that `branch` was admitted with,
  // computed or launched, and nothing was grown past them.
  BranchId Fork(BranchId branch, int32_t kv_len);

  // Gives the branch pages for kv indices below `kv_len`, which may be less than before (drafts were refused); false when there are
  // none to be had (some may have been taken: call again after a release, or release the branch). Evicts unused pages.
  [[nodiscard]] bool Grow(BranchId branch, int32_t kv_len);
  // page * page_size + slot to write the token at `kv_index` to; -1 when its KV is already there. REQUIRES: grown past it.
  int64_t SlotOf(BranchId branch, int32_t kv_index) const;
  // Fetches into the processor's cache what Grow, SlotOf and MarkComputed will look at. kNoBranch: nothing.
  void Prefetch(BranchId branch, int32_t kv_index) const {
    if (branch == kNoBranch) return;
    __builtin_prefetch(&branches_[branch]);
    __builtin_prefetch(&forest_.Row(branch)[page_.Floor(kv_index)]);
  }
  // Everything before kv index `computed` has been through the forward pass. May go back, not into the admitted tokens: drafts were
  // refused.
  void MarkComputed(BranchId id, int32_t computed) {
    Branch& branch = branches_[id];
    const bool prompt_was_computed = branch.computed > branch.own_begin;
    branch.computed = computed;
    if (!prompt_was_computed) tree_.Mark(places_[id].lock.node(), computed, KvProgress::kReady);
  }
  // Tokens of a branch that others could share and cannot yet: they are computed, its own, and end with a page. Publish them.
  struct TokenRange {
    int32_t begin = 0, end = 0;  // kv indices
    bool empty() const { return begin == end; }
  };
  TokenRange Unpublished(BranchId branch) const {
    const Branch& b = branches_[branch];
    const int32_t end_page = page_.Floor(b.computed);
    if (!options_.share || end_page <= page_.Floor(b.own_begin)) return {};
    if (!IsCurrent(branch)) return {};
    return {.begin = b.own_begin, .end = end_page * page_.value()};
  }
  // Makes tree nodes of Unpublished(branch), so that others can share it while the branch runs. Where the tree has the same tokens
  // already the branch takes those pages and frees its own: what was published first stays. Changes the branch's row and place in
  // the forest then, so the plan must be updated before the next forward pass. REQUIRES: not empty; `tokens` are those; no copies
  // to its own pages are pending.
  void Publish(BranchId branch, std::span<const int32_t> tokens);
  // Ends the branch. Its computed tokens stay cached: `tokens` are all its computed tokens, from the start. Without any, only what
  // was published stays.
  void Release(BranchId branch, std::span<const int32_t> tokens);

  // Prompts that stay under names.
  PinnedPrompts& pins() { return pins_; }

  // ---- scores of cached tokens, which live as long as the tokens, of the weights that made their KV

  // Keeps scores of the branch's tokens from kv index `begin` on: PrefixTree::KeepScores. Nothing of KV of older weights.
  void KeepScores(BranchId branch, int32_t begin, std::span<const TokenScore> scores) {
    if (options_.share && IsCurrent(branch)) tree_.KeepScores(places_[branch].lock.node(), begin, scores);
  }

  // Schedules the next step. REQUIRES: no other one is scheduled and not launched.
  [[nodiscard]] CacheStep BeginStep();

  // ---- accounting

  struct Usage {
    int32_t pages_total = 0, pages_owned = 0;  // owned: running and cached
    int32_t pages_in_use = 0;                  // of running branches and pins, shared ones once
    int64_t pages_unshared = 0;                // what the same branches would take with a copy each
    int64_t tokens_in_use = 0;                 // distinct tokens in pages_in_use; the rest of their slots is rounding
    // Since the cache was made.
    int64_t hit_tokens = 0;    // found by Admit
    int64_t merged_pages = 0;  // freed by Publish, since the tree had the same
  };
  Usage usage() const;
  // A node of the tree: tokens [begin, end) of some prompts, found by `hits` admissions, in use by `users` branches now.
  struct PrefixUse {
    NodeId node = kNoNode, parent = kNoNode;  // the parent of those at the top is kRootNode
    int32_t begin = 0, end = 0;
    int64_t hits = 0;
    int32_t users = 0;
    bool pinned = false;  // it or something below it
  };
  struct PrefixUses {
    std::vector<PrefixUse> all;
    // By CacheSalt::tenant, of those that have any: its own nodes. Where a parent is shared by all tenants, kRootNode stands for
    // it.
    std::map<std::string, std::vector<PrefixUse>> of_tenants;
  };
  // The nodes in use by branches, or the `count` nodes in most use where that is more, of all and of each tenant: by users, then
  // those that are pinned, then by hits, then the one nearer to the root. A node has no more of each than its parent, so parents
  // come first and none is missing. O(nodes + branches x depth).
  PrefixUses TopPrefixes(size_t count) const;
  // Copies that the next step does first.
  bool has_copies() const { return !pending_copies_.empty(); }
  int32_t free_branches() const { return static_cast<int32_t>(free_branches_.size()); }
  const Options& options() const { return options_; }
  const PrefixTree& tree() const { return tree_; }
  const BranchForest& forest() const { return forest_; }

  // Frees everything that no branch uses.
  void DropCached();
  // The weights change: cached tokens are never found again, and freed but for those that branches use, which go on with them.
  // Tokens that those compute from here on are not shared. REQUIRES: no pins; no step is scheduled or under way.
  void Retire();
  // Forgets branches, pins and all that is cached, also where a call that threw has left them half changed: it is as new. Takes no
  // memory. Counters stay. REQUIRES: no step is under way.
  void Clear();
  // Everything accounted for: pool, tree, forest, rows. O(everything).
  Status CheckIntegrity() const;

 private:
  struct alignas(64) Branch {  // a cache line: each is visited several times a step
    bool in_use = false;
    bool has_tail = false;  // its node came from Publish
    int32_t own_begin = 0;  // kv index where its own pages take over: the end of its node
    int32_t kv_len = 0;     // kv indices below this may be written
    int32_t capacity = 0;   // kv indices below this have pages
    int32_t computed = 0, cached = 0;
    // Pages own_begin / page_size and on, in use; the first may continue a shared page, in place or as a copy.
    PageRefs own_pages;
  };
  static_assert(sizeof(Branch) == 64);
  // Where a branch is in the tree.
  struct Place {
    NodeLock lock;  // on the node that it is attached to
    SaltRange salt;
    // In the shared forest only as far as everything was computed before it came, until this much is computed, since it computes
    // what others share with it; 0: with all of its path.
    int32_t joins_at = 0;
  };

  friend class CacheStep;
  friend class PinnedPrompts;
  KvCache(const Options& options, std::unique_ptr<PagePool> pool, std::unique_ptr<PrefixTree> tree, BranchForest forest);
  // A free page, evicting if need be; kNoPage if every page is in use.
  PageId TakePage();
  // Appends to `pages` the page that continues `shared` from kv index `begin`, not a page start: the page itself without a write
  // past `begin`, else a copy of it. False when there is no page.
  bool ContinuePage(PageId shared, int32_t begin, PageRefs* pages);
  // Appends fresh pages for entries [begin, end) of a row.
  bool AppendFreshPages(int32_t begin, int32_t end, PageRefs* pages);
  void FillRow(BranchId branch);
  // Entries [begin, end) of a branch's row, from the tree nodes of its path.
  void CopyRowOfPath(BranchId branch, int32_t begin, int32_t end);
  BranchId TakeBranch();
  // Changes a branch's own_begin and kv_len, and the sums over them.
  void SetExtent(Branch* branch, int32_t own_begin, int32_t kv_len);
  bool HasPendingCopies(const Branch& branch) const;  // to its own pages
  // False for a branch that has KV of weights before the last Retire.
  bool IsCurrent(BranchId branch) const { return tree_.IsCurrent(places_[branch].lock.node()); }
  NodeId Split(const PrefixTree::Match& match);
  // Adds nodes below `above`, one per salt, for `tokens`, which begin at kv index `begin`. Returns the last.
  NodeId AddPath(NodeId above, std::span<const int32_t> tokens, int32_t begin, const SaltRange& salt, PageRefs pages,
                 int32_t ready_end);
  // Puts what a branch computed past its node into the tree, except what is there already.
  void KeepOwnTokens(BranchId branch, std::span<const int32_t> tokens);
  // The range of a salt, which has ids from here on.
  SaltRange Intern(const CacheSalt& salt);

  Options options_;
  const Divisor page_;  // options_.page_size
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<PrefixTree> tree_storage_;
  PagePool& pages_;
  PrefixTree& tree_;
  BranchForest forest_;
  std::vector<Branch> branches_;
  std::vector<Place> places_;  // by branch
  std::vector<BranchId> free_branches_;
  std::vector<attention::PageCopy> pending_copies_;  // for the step that is scheduled next
  PageRefs copied_pages_;                            // by Fork, in pending_copies_: in use
  std::vector<attention::PageCopy> taken_copies_;    // by the step before
  struct Prefill {
    BranchId branch = kNoBranch;
    int32_t kv_len = 0;
  };
  std::vector<Prefill> prefills_;  // of the step that is being scheduled: branches that compute tokens of the tree
  PinnedPrompts pins_;
  SaltIds salts_;
  int64_t pages_unshared_ = 0, own_tokens_ = 0;  // sums over branches: Usage
  int64_t hit_tokens_ = 0, merged_pages_ = 0;
};

}  // namespace coppice
