// A radix tree over tokens whose nodes hold KV pages: what is cached, for which tenants, and what may be evicted. The scheduler
// decides which branches run; kv_cache.h builds branches and the forest on top of it. Layer: cache. Prefix trees of KV: Hydragen
// section 3.3, Cascade Inference; RelayAttention section 3 for pinned prefixes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/page_pool.h"
#include "cache/page_refs.h"
#include "cache/token_score.h"
#include "coppice/core/status.h"

namespace coppice {

using NodeId = int32_t;
inline constexpr NodeId kRootNode = 0;  // the empty prefix; always there
inline constexpr NodeId kNoNode = -1;

// A token is visible only to requests of the same salt id at its kv index: from `begin` on that is `id`, before it from
// `tenant_begin` on `tenant_id`, and what lies before both is public (id 0). With id 0, or tenant_id 0, there is no such part.
struct SaltRange {
  uint32_t id = 0, tenant_id = 0;
  int32_t begin = 0, tenant_begin = 0;

  uint32_t At(int32_t kv_index) const {
    if (id != 0 && kv_index >= begin) return id;
    return kv_index >= tenant_begin ? tenant_id : 0;
  }
  // The first index behind `kv_index` that may have another id.
  int32_t EndOf(int32_t kv_index) const {
    int32_t end = std::numeric_limits<int32_t>::max();
    if (id != 0 && kv_index < begin) end = begin;
    if (tenant_id != 0 && kv_index < tenant_begin) end = std::min(end, tenant_begin);
    return end;
  }
};

// How far the KV of a tree's tokens has come; each state holds what later ones do.
enum class KvProgress : uint8_t {
  kDue,       // the step that is being scheduled computes it
  kLaunched,  // a step that computes it was launched
  kReady,     // it is computed
};

// Path-compressed: a node covers kv indices [begin, end) of every path below it, and children of a node differ in their first
// (salt, token). A node references every page that its range touches, pages [begin / page_size, ceil(end / page_size)); the first
// of them holds valid KV from slot 0, the tokens of ancestors included, so that a page row is a concatenation of nodes' pages.
//
// Tokens of a node at or past `ready_end` are announced but not known to be computed; those before `launched_end` are computed by
// steps that are under way, those before `due_end` by the step that is being scheduled. No branch may attach past all three, so a
// node with tokens that are not being computed is a leaf of the tree, used by the branch that will compute them (or an ancestor of
// such a leaf made by the same request).
//
// Locks keep a node, its ancestors and their pages: a locked node is in use. Nodes have a version, that of the weights that made
// their KV; texts are found in nodes of the current version alone. Thread-compatible.
class PrefixTree {
  using LruSet = std::set<std::pair<uint64_t, NodeId>>;  // (last_use, unlocked leaf)

 public:
  struct Node {
    NodeId parent = kNoNode;
    int32_t begin = 0, ready_end = 0;
    int32_t launched_end = 0, due_end = 0;  // meaningful where they are larger than ready_end
    uint32_t salt = 0, version = 0;
    std::vector<int32_t> tokens;
    std::vector<TokenScore> scores;  // of the first tokens; of those behind them nothing is known
    PageRefs pages;                  // in use while there are locks
    int32_t num_children = 0;
    int32_t locks = 0;      // direct locks, and children with locks
    uint64_t last_use = 0;  // when it was added or last unlocked
    int64_t hits = 0;       // how often it was found (CountHit)
    uint64_t serial = 0;    // new when the slot is taken, and when its last tokens are dropped
    bool in_tree = false;   // false: a free slot
    LruSet::node_type lru;  // its entry of the LRU order while it is not in there, so that unlocking takes no memory

    int32_t end() const { return begin + static_cast<int32_t>(tokens.size()); }
  };

  // Pages are owned through `pool`, which outlives the tree.
  explicit PrefixTree(PagePool* pool);

  // The longest path whose tokens are a prefix of `tokens`: the deepest node it touches and the number of tokens matched, which may
  // end inside that node. `ready` is how many of them have been computed, `computed` counts those that launched steps compute too,
  // `due` those of the step that is being scheduled as well.
  // O(tokens).
  struct Match {
    NodeId node = kRootNode;
    int32_t length = 0, due = 0, computed = 0, ready = 0;
  };
  Match Find(std::span<const int32_t> tokens, const SaltRange& salt) const { return FindBelow(kRootNode, tokens, salt); }
  // Where a text was found last, so that the next look begins there: what leads to a node never changes while the node lives.
  struct Cursor {
    NodeId node = kRootNode;
    int32_t length = 0;
    uint64_t serial = 0;  // of the node
  };
  // The match that Find returns; the cursor moves there. REQUIRES: a new cursor, or one that was given the same text, or its
  // beginning, with a salt that sees the same. O(tokens past the cursor + nodes whose marks are not ready); O(tokens) when the
  // cursor's node is gone.
  Match FindFrom(Cursor* cursor, std::span<const int32_t> tokens, const SaltRange& salt) const;
  // The same for the tokens that follow node `start`; Match::length counts from the root. REQUIRES: `start` is ready to its end.
  Match FindBelow(NodeId start, std::span<const int32_t> tokens, const SaltRange& salt) const;

  // Makes `match.length` the end of a node. If it was inside, a new node takes the upper part and match.node keeps the lower one
  // (so branches attached to match.node stay). Returns the node that ends there. REQUIRES: match.length <= match.due.
  NodeId SplitAt(const Match& match);

  // Adds a leaf of the current version with `tokens` (at least one) below `parent`; `pages` are its pages in order.
  // REQUIRES: `parent` is current, and no child of it begins with (salt, tokens[0]).
  NodeId AddLeaf(NodeId parent, std::span<const int32_t> tokens, uint32_t salt, PageRefs pages, int32_t ready_end);

  // Appends computed tokens to a leaf, and takes over their pages, the first of `pages`.
  // REQUIRES: no children; ready to its end, where a page ends.
  void Extend(NodeId node, std::span<const int32_t> tokens, PageRefs* pages);

  // Everything on the path to `node` before kv index `end` has come so far.
  void Mark(NodeId node, int32_t end, KvProgress progress);
  // kLaunched: steps failed, and nothing is launched or due. kDue: the step that was being scheduled is not launched, and nothing
  // is due but what is launched. REQUIRES: not kReady.
  void Forget(KvProgress progress);
  // Drops tokens that will not be computed any more: unready ones of `node` and of ancestors that only it used. Those that another
  // branch uses stay: it is in the same step, and drops them when it fails.
  void DropUnready(NodeId node);

  // Keeps the known ones of `scores`, those of the tokens on the path to `node` from kv index `begin` on; scores past the path are
  // left out. A kept score stays where it covers the new one. O(nodes of the path + scores).
  void KeepScores(NodeId node, int32_t begin, std::span<const TokenScore> scores);
  // The reverse: fills in those that are kept, and leaves the others as they are.
  void CopyScores(NodeId node, int32_t begin, std::span<TokenScore> scores) const;

  // One more request found the path to `node`.
  void CountHit(NodeId node);

  // By NodeLock. Unlocking takes no memory.
  void Lock(NodeId node);
  void Unlock(NodeId node);

  // Begins a version: KV that comes is not of the weights that made what is there. Nodes that are locked stay until they are
  // unlocked, but nothing is found in them; EvictRetired frees the others.
  void Retire() { ++version_; }
  // The root is of every version.
  bool IsCurrent(NodeId id) const { return id == kRootNode || nodes_[id].version == version_; }
  // Frees unlocked nodes of older versions.
  void EvictRetired();

  // Nothing is cached, whatever was locked; the pages are for the pool to take back. Takes no memory.
  void Clear();
  // Frees the least recently used unlocked leaf; false if there is none. O(log nodes + its pages).
  bool EvictOne();

  const Node& node(NodeId id) const { return nodes_[id]; }
  int32_t num_nodes() const { return num_nodes_; }                             // without the root
  NodeId node_capacity() const { return static_cast<NodeId>(nodes_.size()); }  // ids are below this
  int64_t locked_tokens() const { return locked_tokens_; }

  // Walks everything: links, order, locks, LRU membership, page counts per node; adds to `references` and `uses` what the tree's
  // nodes account for. INTERNAL names the node.
  Status CheckIntegrity(std::span<int32_t> references, std::span<int32_t> uses) const;

 private:
  // The part of the cursor's match that still holds, with today's marks.
  Match Recall(const Cursor& cursor) const;
  // Goes on from a match that is due to its end; `tokens` follow it.
  Match ContinueMatch(Match match, std::span<const int32_t> tokens, const SaltRange& salt) const;

  struct ChildKey {
    NodeId parent;
    uint32_t salt, version;
    int32_t token;
    bool operator==(const ChildKey&) const = default;
  };
  struct ChildKeyHash {
    size_t operator()(const ChildKey& key) const;
  };

  NodeId NewNode();
  void Remove(NodeId id);
  ChildKey KeyOf(const Node& node) const { return {node.parent, node.salt, node.version, node.tokens.front()}; }
  bool IsEvictable(NodeId id) const;
  // Keeps evictable_ in step around a change of a node's locks, children, last_use or version.
  void LeaveLru(NodeId id);
  void EnterLru(NodeId id);

  PagePool* pool_;
  std::vector<Node> nodes_;
  std::vector<NodeId> free_nodes_;
  std::unordered_map<ChildKey, NodeId, ChildKeyHash> children_;
  LruSet evictable_;
  uint64_t clock_ = 0;
  uint64_t last_serial_ = 0;
  uint32_t version_ = 0;
  int32_t num_nodes_ = 0;
  int64_t locked_tokens_ = 0;
};

}  // namespace coppice
