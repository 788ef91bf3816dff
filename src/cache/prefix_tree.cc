#include "cache/prefix_tree.h"

#include <algorithm>
#include <string>

#include "core/check.h"
#include "core/math.h"

namespace coppice {
size_t PrefixTree::ChildKeyHash::operator()(const ChildKey& key) const {
  uint64_t h = (static_cast<uint64_t>(static_cast<uint32_t>(key.parent)) << 32 | static_cast<uint32_t>(key.token)) ^
               ((uint64_t{key.version} << 32 | key.salt) * 0x9e3779b97f4a7c15u);
  h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;  // a multiply-xorshift finaliser: neighbouring ids must not share buckets
  return h ^ (h >> 32);
}

PrefixTree::PrefixTree(PagePool* pool) : pool_(pool) {
  nodes_.emplace_back();
  nodes_[kRootNode].in_tree = true;
  nodes_[kRootNode].locks = 1;  // never evicted
}

PrefixTree::Match PrefixTree::FindBelow(NodeId start, std::span<const int32_t> tokens, const SaltRange& salt) const {
  const int32_t begin = nodes_[start].end();
  return ContinueMatch({.node = start, .length = begin, .due = begin, .computed = begin, .ready = begin}, tokens, salt);
}

PrefixTree::Match PrefixTree::ContinueMatch(Match match, std::span<const int32_t> tokens, const SaltRange& salt) const {
  for (size_t used = 0; used < tokens.size();) {
    if (match.length == nodes_[match.node].end()) {
      const auto child = children_.find({match.node, salt.At(match.length), version_, tokens[used]});
      if (child == children_.end()) break;
      match.node = child->second;
    }
    const Node& node = nodes_[match.node];
    // A node has one salt, so the part of it that this request may see ends where the request's salt changes.
    const int32_t seen = std::min(node.end(), salt.EndOf(node.begin));
    const auto candidates = std::span(node.tokens).subspan(match.length - node.begin, std::max(seen - match.length, 0));
    const auto rest = tokens.subspan(used);
    const auto differs = std::ranges::mismatch(rest, candidates).in1;
    const int32_t same = static_cast<int32_t>(differs - rest.begin());
    // Tokens below a part that is only due are at most due themselves.
    const int32_t before = match.length;
    match.length += same;
    const int32_t computed_end = std::max(node.ready_end, node.launched_end);
    if (match.ready == before) match.ready = std::min(match.length, std::max(before, node.ready_end));
    if (match.computed == before) match.computed = std::min(match.length, std::max(before, computed_end));
    match.due = std::min(match.length, std::max({before, computed_end, node.due_end}));
    used += same;
    if (match.length < node.end() || match.due < match.length) break;
  }
  return match;
}

PrefixTree::Match PrefixTree::FindFrom(Cursor* cursor, std::span<const int32_t> tokens, const SaltRange& salt) const {
  Match match = Recall(*cursor);
  if (match.due == match.length) match = ContinueMatch(match, tokens.subspan(match.length), salt);
  *cursor = {.node = match.node, .length = match.length, .serial = nodes_[match.node].serial};
  return match;
}

PrefixTree::Match PrefixTree::Recall(const Cursor& cursor) const {
  Match match;
  const Node& last = nodes_[cursor.node];
  if (!last.in_tree || last.serial != cursor.serial || !IsCurrent(cursor.node)) return match;
  match.node = cursor.node;
  while (cursor.length <= nodes_[match.node].begin && match.node != kRootNode)
    match.node = nodes_[match.node].parent;  // it was split
  match.length = match.due = match.computed = match.ready = cursor.length;
  // The first gap in each of the marks counts, so upwards the last one found. Nodes above a ready node are ready.
  for (NodeId id = match.node; id != kRootNode && nodes_[id].ready_end < std::min(match.length, nodes_[id].end());
       id = nodes_[id].parent) {
    const Node& node = nodes_[id];
    const int32_t end = std::min(match.length, node.end()), computed_end = std::max(node.ready_end, node.launched_end);
    match.ready = node.ready_end;
    if (computed_end < end) match.computed = computed_end;
    if (const int32_t due_end = std::max(computed_end, node.due_end); due_end < end) {  // the search ends here
      match.node = id;
      match.length = end;
      match.due = due_end;
    }
  }
  return match;
}

NodeId PrefixTree::SplitAt(const Match& match) {
  COPPICE_CHECK(match.length <= match.due);
  if (match.length == nodes_[match.node].end()) return match.node;
  const NodeId upper_id = NewNode();  // may move nodes_: take references after it
  Node& lower = nodes_[match.node];
  Node& upper = nodes_[upper_id];
  LeaveLru(match.node);
  const int32_t page_size = pool_->page_size();
  const size_t keep = match.length - lower.begin;
  children_.erase(KeyOf(lower));

  upper.parent = lower.parent;
  upper.begin = lower.begin;
  upper.ready_end = std::min(match.length, lower.ready_end);
  upper.launched_end = std::min(match.length, lower.launched_end);
  upper.due_end = std::min(match.length, lower.due_end);
  upper.salt = lower.salt;
  upper.version = lower.version;
  upper.tokens.assign(lower.tokens.begin(), lower.tokens.begin() + keep);
  const size_t kept_scores = std::min(keep, lower.scores.size());
  upper.scores.assign(lower.scores.begin(), lower.scores.begin() + kept_scores);
  const int32_t first_page = lower.begin / page_size;
  const int32_t upper_pages = CeilDiv(match.length, page_size) - first_page;
  upper.pages.Share(lower.pages.ids().first(upper_pages));  // both halves hold the page that the cut goes through
  upper.pages.SetInUse(lower.locks > 0);
  upper.num_children = 1;
  upper.locks = lower.locks > 0;
  upper.last_use = lower.last_use;
  upper.hits = lower.hits;

  lower.parent = upper_id;
  lower.begin = match.length;
  lower.ready_end = std::max(match.length, lower.ready_end);
  lower.tokens.erase(lower.tokens.begin(), lower.tokens.begin() + keep);
  lower.scores.erase(lower.scores.begin(), lower.scores.begin() + kept_scores);
  lower.pages.DropFront(match.length / page_size - first_page);
  children_.emplace(KeyOf(upper), upper_id);
  children_.emplace(KeyOf(lower), match.node);
  EnterLru(match.node);
  return upper_id;
}

NodeId PrefixTree::AddLeaf(NodeId parent, std::span<const int32_t> tokens, uint32_t salt, PageRefs pages, int32_t ready_end) {
  COPPICE_DCHECK(!tokens.empty() && IsCurrent(parent));
  const NodeId id = NewNode();
  LeaveLru(parent);
  Node& node = nodes_[id];
  node.parent = parent;
  node.begin = nodes_[parent].end();
  node.ready_end = ready_end;
  node.salt = salt;
  node.version = version_;
  node.tokens.assign(tokens.begin(), tokens.end());
  node.pages = std::move(pages);
  node.last_use = ++clock_;
  ++nodes_[parent].num_children;
  const bool added = children_.emplace(KeyOf(node), id).second;
  COPPICE_CHECK(added);
  EnterLru(id);
  return id;
}

void PrefixTree::Extend(NodeId id, std::span<const int32_t> tokens, PageRefs* pages) {
  Node& node = nodes_[id];
  COPPICE_DCHECK(node.num_children == 0 && node.ready_end == node.end() && node.end() % pool_->page_size() == 0);
  node.tokens.insert(node.tokens.end(), tokens.begin(), tokens.end());
  node.pages.AppendFrontOf(pages, CeilDiv(tokens.size(), static_cast<size_t>(pool_->page_size())));
  node.ready_end = node.end();
  if (node.locks > 0) locked_tokens_ += static_cast<int64_t>(tokens.size());
}

void PrefixTree::Mark(NodeId id, int32_t end, KvProgress progress) {
  // Nodes above a node that is ready to its end are ready.
  for (; id != kRootNode && nodes_[id].ready_end < nodes_[id].end(); id = nodes_[id].parent) {
    Node& node = nodes_[id];
    const int32_t end_here = std::clamp(end, node.begin, node.end());
    switch (progress) {
      case KvProgress::kDue: node.due_end = end_here; break;
      case KvProgress::kLaunched: node.launched_end = std::max(node.launched_end, end_here); break;
      case KvProgress::kReady: node.ready_end = std::max(node.ready_end, end_here); break;
    }
  }
}

void PrefixTree::Forget(KvProgress progress) {
  for (Node& node : nodes_) {
    node.due_end = 0;
    if (progress == KvProgress::kLaunched) node.launched_end = 0;
  }
}

void PrefixTree::DropUnready(NodeId id) {
  while (id != kRootNode && nodes_[id].ready_end < nodes_[id].end()) {
    Node& node = nodes_[id];
    if (node.locks > 0 || node.num_children > 0) return;
    const NodeId parent = node.parent;
    if (node.ready_end == node.begin) {
      Remove(id);
      id = parent;
      continue;
    }
    const int32_t page_size = pool_->page_size();
    node.tokens.resize(node.ready_end - node.begin);
    node.scores.resize(std::min(node.scores.size(), node.tokens.size()));
    node.serial = ++last_serial_;
    node.launched_end = node.due_end = 0;
    node.pages.DropFrom(CeilDiv(node.ready_end, page_size) - node.begin / page_size);
    if (node.ready_end % page_size != 0) pool_->set_claimed_slots(node.pages.back(), node.ready_end % page_size);
    return;
  }
}

void PrefixTree::KeepScores(NodeId id, int32_t begin, std::span<const TokenScore> scores) {
  const auto end = [&](const Node& node) { return std::min(begin + static_cast<int32_t>(scores.size()), node.end()); };
  for (; id != kRootNode && nodes_[id].end() > begin; id = nodes_[id].parent) {
    Node& node = nodes_[id];
    for (int32_t i = std::max(begin, node.begin); i < end(node); ++i) {
      const TokenScore& score = scores[i - begin];
      if (!score.is_known()) continue;
      const auto place = static_cast<size_t>(i - node.begin);
      if (place >= node.scores.size()) node.scores.resize(static_cast<size_t>(end(node) - node.begin));
      if (!node.scores[place].Covers(score)) node.scores[place] = score;
    }
  }
}

void PrefixTree::CopyScores(NodeId id, int32_t begin, std::span<TokenScore> scores) const {
  for (; id != kRootNode && nodes_[id].end() > begin; id = nodes_[id].parent) {
    const Node& node = nodes_[id];
    const int32_t first = std::max(begin, node.begin);
    const int32_t last =
        std::min(begin + static_cast<int32_t>(scores.size()), node.begin + static_cast<int32_t>(node.scores.size()));
    for (int32_t i = first; i < last; ++i) {
      if (node.scores[i - node.begin].is_known()) scores[i - begin] = node.scores[i - node.begin];
    }
  }
}

void PrefixTree::CountHit(NodeId id) {
  for (; id != kRootNode; id = nodes_[id].parent) ++nodes_[id].hits;
}

void PrefixTree::Lock(NodeId id) {
  for (; id != kNoNode; id = nodes_[id].parent) {
    if (nodes_[id].locks == 0) {
      LeaveLru(id);
      nodes_[id].pages.SetInUse(true);
      locked_tokens_ += static_cast<int64_t>(nodes_[id].tokens.size());
    }
    if (nodes_[id].locks++ > 0) return;
  }
}

void PrefixTree::Unlock(NodeId id) {
  for (; id != kNoNode; id = nodes_[id].parent) {
    Node& node = nodes_[id];
    COPPICE_DCHECK(node.locks > 0);
    if (--node.locks > 0) return;
    node.pages.SetInUse(false);
    locked_tokens_ -= static_cast<int64_t>(node.tokens.size());
    node.last_use = IsCurrent(id) ? ++clock_ : 0;  // the oldest, for EvictRetired
    EnterLru(id);
  }
}

void PrefixTree::EvictRetired() {
  while (!evictable_.empty() && !IsCurrent(evictable_.begin()->second)) Remove(evictable_.begin()->second);
}

void PrefixTree::Clear() {
  nodes_.erase(nodes_.begin() + 1, nodes_.end());
  nodes_[kRootNode].num_children = 0;
  nodes_[kRootNode].locks = 1;
  free_nodes_.clear();
  children_.clear();
  evictable_.clear();
  num_nodes_ = 0;
  locked_tokens_ = 0;
}

bool PrefixTree::EvictOne() {
  if (evictable_.empty()) return false;
  Remove(evictable_.begin()->second);
  return true;
}

NodeId PrefixTree::NewNode() {
  ++num_nodes_;
  LruSet entry = {{}};
  Node node{.pages = PageRefs(pool_), .serial = ++last_serial_, .in_tree = true, .lru = entry.extract(entry.begin())};
  if (free_nodes_.empty()) {
    nodes_.push_back(std::move(node));
    return static_cast<NodeId>(nodes_.size()) - 1;
  }
  const NodeId id = free_nodes_.back();
  free_nodes_.pop_back();
  nodes_[id] = std::move(node);
  return id;
}

void PrefixTree::Remove(NodeId id) {
  Node& node = nodes_[id];
  LeaveLru(id);
  children_.erase(KeyOf(node));
  const NodeId parent = node.parent;
  node = Node{};
  free_nodes_.push_back(id);
  --num_nodes_;
  --nodes_[parent].num_children;
  EnterLru(parent);
}

bool PrefixTree::IsEvictable(NodeId id) const { return nodes_[id].locks == 0 && nodes_[id].num_children == 0; }

void PrefixTree::LeaveLru(NodeId id) {
  if (IsEvictable(id)) nodes_[id].lru = evictable_.extract({nodes_[id].last_use, id});
}

void PrefixTree::EnterLru(NodeId id) {
  if (!IsEvictable(id) || !nodes_[id].lru) return;
  nodes_[id].lru.value() = {nodes_[id].last_use, id};
  evictable_.insert(std::move(nodes_[id].lru));
}

Status PrefixTree::CheckIntegrity(std::span<int32_t> references, std::span<int32_t> uses) const {
  const auto broken = [](NodeId id, const std::string& what) {
    return Internal("prefix tree node " + std::to_string(id) + ": " + what);
  };
  std::vector<int32_t> child_count(nodes_.size()), locked_children(nodes_.size());
  int32_t alive = 0, evictable = 0;
  int64_t locked_tokens = 0;
  for (NodeId id = 1; id < node_capacity(); ++id) {
    const Node& node = nodes_[id];
    if (!node.in_tree) continue;
    ++alive;
    if (node.parent < 0 || node.parent >= node_capacity() || !nodes_[node.parent].in_tree) return broken(id, "its parent is gone");
    const Node& parent = nodes_[node.parent];
    if (node.begin != parent.end()) return broken(id, "does not begin where its parent ends");
    if (node.parent != kRootNode && node.version != parent.version) return broken(id, "is of another version than its parent");
    if (IsEvictable(id) && !IsCurrent(id)) return broken(id, "is of an older version, and no branch uses it");
    if (node.tokens.empty()) return broken(id, "is empty");
    if (node.scores.size() > node.tokens.size()) return broken(id, "has scores of more tokens than it has");
    if (parent.ready_end < parent.end() && node.ready_end > node.begin) return broken(id, "is ready below an unready parent");
    if (node.ready_end < node.begin || node.ready_end > node.end()) return broken(id, "ready_end is outside of it");
    const auto entry = children_.find(KeyOf(node));
    if (entry == children_.end() || entry->second != id) return broken(id, "is not its parent's child");
    const int32_t page_size = pool_->page_size();
    const int32_t expected_pages = CeilDiv(node.end(), page_size) - node.begin / page_size;
    if (static_cast<int32_t>(node.pages.size()) != expected_pages) return broken(id, "has a wrong number of pages");
    ++child_count[node.parent];
    locked_children[node.parent] += node.locks > 0;
    if (node.locks > 0) locked_tokens += static_cast<int64_t>(node.tokens.size());
    for (const PageId page : node.pages.ids()) {
      ++references[page];
      uses[page] += node.locks > 0;
    }
    if (IsEvictable(id)) {
      ++evictable;
      if (!evictable_.contains({node.last_use, id})) return broken(id, "is an unlocked leaf but not in the LRU order");
    }
  }
  for (NodeId id = 1; id < node_capacity(); ++id) {
    if (!nodes_[id].in_tree) continue;
    if (child_count[id] != nodes_[id].num_children) return broken(id, "num_children is wrong");
    if (locked_children[id] > nodes_[id].locks) return broken(id, "has fewer locks than locked children");
  }
  if (alive != num_nodes_ || children_.size() != static_cast<size_t>(alive)) return broken(kRootNode, "the node count is wrong");
  if (evictable_.size() != static_cast<size_t>(evictable)) return broken(kRootNode, "the LRU order holds a locked or inner node");
  if (locked_tokens != locked_tokens_) return broken(kRootNode, "locked_tokens is wrong");
  return OkStatus();
}

}  // namespace coppice
