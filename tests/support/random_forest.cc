#include "tests/support/random_forest.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace coppice::attention::testing {

RandomForest::RandomForest(const RandomForestOptions& options, uint64_t seed) : options_(options), rng_(seed) {
  const int32_t branches = options_.max_branches, capacity = (options_.max_kv_len + options_.page_size - 1) / options_.page_size;
  node_parent_.assign(2 * branches, kFreeSlot);
  node_begin_.assign(2 * branches, 0);
  node_end_.assign(2 * branches, 0);
  branch_node_.assign(branches, kFreeSlot);
  query_begin_.assign(branches, 0);
  query_count_.assign(branches, 0);
  kv_len_.assign(branches, 0);
  page_capacity_.assign(branches, capacity);
  page_begin_.resize(branches);
  for (int32_t b = 0; b < branches; ++b) page_begin_[b] = b * capacity;
  page_indices_.assign(size_t(branches) * capacity, -1);
  page_refs_.assign(size_t(branches) * capacity, 0);
  tokens_.resize(branches);

  if (options_.start_empty) return;
  AddRoot(Uniform(1, std::min(2 * options_.max_segment, options_.max_kv_len)));
  for (int32_t b = 1; b < (2 * branches + 2) / 3; ++b) AddRandomBranch();
  DealQueries();
}

PrefixForestView RandomForest::View() const {
  return {
      .page_size = options_.page_size,
      .version = version_,
      .node_parent = node_parent_,
      .node_begin = node_begin_,
      .node_end = node_end_,
      .branch_node = branch_node_,
      .branch_query_begin = query_begin_,
      .branch_query_count = query_count_,
      .branch_kv_len = kv_len_,
      .branch_page_begin = page_begin_,
      .branch_page_capacity = page_capacity_,
      .page_indices = page_indices_,
      .query_tree_mask = masks_,
  };
}

PlanCapacity RandomForest::Capacity() const {
  return {
      .max_branches = options_.max_branches,
      .max_queries = options_.max_branches * (options_.max_query_count + 1),  // + 1: gaps
      .max_nodes = static_cast<int32_t>(node_parent_.size()),
      .max_page_slots = static_cast<int32_t>(page_indices_.size()),
      .page_size = options_.page_size,
  };
}

bool RandomForest::Grow() {
  for (size_t b = 0; b < branch_node_.size(); ++b) {
    if (branch_node_[b] != kFreeSlot && query_count_[b] > 0 && kv_len_[b] == options_.max_kv_len) return false;
  }
  for (size_t b = 0; b < branch_node_.size(); ++b) {
    if (branch_node_[b] != kFreeSlot && query_count_[b] > 0) AppendToken(static_cast<int32_t>(b));
  }
  return true;
}

void RandomForest::Edit() {
  switch (Uniform(0, 2)) {
    case 0: AddRandomBranch(); break;
    case 1: {
      const int32_t used = static_cast<int32_t>(std::ranges::count_if(branch_node_, [](int32_t n) { return n != kFreeSlot; }));
      if (used > 1) Remove(RandomBranch());
      break;
    }
    default: break;
  }
  DealQueries();
}

int32_t RandomForest::AddRoot(int32_t kv_len) {
  const int32_t b = NewBranchSlot();
  if (b < 0 || kv_len > options_.max_kv_len) return -1;
  branch_node_[b] = NewNode(kNoParent, 0, kLive);
  for (int32_t i = 0; i < kv_len; ++i) AppendToken(b);
  ++version_;
  return b;
}

int32_t RandomForest::Fork(int32_t source, int32_t at, int32_t own_tokens, bool empty_node) {
  COPPICE_CHECK(at >= 0 && at <= kv_len_[source]);
  const int32_t b = NewBranchSlot();
  if (b < 0 || at + own_tokens > options_.max_kv_len) return -1;
  const int32_t node = NodeAt(source, at);
  int32_t parent = node_parent_[node];
  if (at > node_begin_[node] || empty_node) {  // split: the upper part is new, the lower part keeps its slot
    if (Depth(node) + Height(node) > options_.max_depth) return -1;
    parent = NewNode(parent, node_begin_[node], at);
    node_begin_[node] = at;
    node_parent_[node] = parent;
  } else if (parent != kNoParent && Depth(parent) + 1 > options_.max_depth) {
    return -1;
  }
  branch_node_[b] = NewNode(parent, at, kLive);

  // Whole pages of the common part are shared; a page that straddles the fork is copied (the test writes the same tokens to both).
  const int32_t shared_pages = at / options_.page_size;
  for (int32_t j = 0; j < shared_pages; ++j) {
    const int32_t page = page_indices_[page_begin_[source] + j];
    page_indices_[page_begin_[b] + j] = page;
    ++page_refs_[page];
  }
  if (at % options_.page_size != 0) page_indices_[page_begin_[b] + shared_pages] = NewPage();
  tokens_[b].assign(tokens_[source].begin(), tokens_[source].begin() + at);
  kv_len_[b] = at;
  for (int32_t i = 0; i < own_tokens; ++i) AppendToken(b);
  ++version_;
  return b;
}

void RandomForest::Remove(int32_t branch) {
  for (int32_t j = 0; j * options_.page_size < kv_len_[branch]; ++j) {
    int32_t& page = page_indices_[page_begin_[branch] + j];
    --page_refs_[page];
    page = -1;
  }
  const int32_t leaf = branch_node_[branch], parent = node_parent_[leaf];
  node_parent_[leaf] = kFreeSlot;
  branch_node_[branch] = kFreeSlot;
  query_count_[branch] = kv_len_[branch] = 0;
  tokens_[branch].clear();
  ++version_;
  if (parent == kNoParent || std::ranges::count(node_parent_, parent) != 1) return;
  // One child is left: the set of branches no longer changes at its begin, so it takes over its parent.
  const int32_t child = static_cast<int32_t>(std::ranges::find(node_parent_, parent) - node_parent_.begin());
  node_begin_[child] = node_begin_[parent];
  node_parent_[child] = node_parent_[parent];
  node_parent_[parent] = kFreeSlot;
}

void RandomForest::DealQueries() {
  std::vector<int32_t> counts(branch_node_.size(), 0);
  for (size_t b = 0; b < counts.size(); ++b) {
    if (branch_node_[b] == kFreeSlot || Chance(options_.idle_branch)) continue;
    counts[b] = std::min(Chance(0.5) ? 1 : Uniform(1, options_.max_query_count), kv_len_[b]);
  }
  SetQueries(counts);
}

void RandomForest::SetQueries(const std::vector<int32_t>& count) {
  std::vector<int32_t> order(branch_node_.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), rng_);
  num_query_rows_ = 0;
  for (const int32_t b : order) {
    query_count_[b] = branch_node_[b] == kFreeSlot ? 0 : count[b];
    COPPICE_CHECK(query_count_[b] <= kv_len_[b]);
    if (query_count_[b] > 0 && Chance(options_.query_gap)) ++num_query_rows_;
    query_begin_[b] = num_query_rows_;
    num_query_rows_ += query_count_[b];
  }
  masks_.clear();
  if (options_.tree_masks) {
    masks_.assign(num_query_rows_, 0);
    for (const int32_t b : order) {
      for (int32_t i = 0; i < query_count_[b]; ++i) {  // a draft sees itself and what its parent sees
        const uint64_t parent = i == 0 ? 0 : Chance(0.1) ? 0 : masks_[query_begin_[b] + Uniform(0, i - 1)];
        masks_[query_begin_[b] + i] = parent | uint64_t{1} << i;
      }
    }
  }
  ++version_;
}

int32_t RandomForest::RandomBranch() {
  std::vector<int32_t> used;
  for (size_t b = 0; b < branch_node_.size(); ++b) {
    if (branch_node_[b] != kFreeSlot) used.push_back(static_cast<int32_t>(b));
  }
  return used[Uniform(0, static_cast<int32_t>(used.size()) - 1)];
}

void RandomForest::AddRandomBranch() {
  const int32_t own = Chance(0.1) ? 0 : Uniform(0, options_.max_segment);
  if (Chance(options_.own_root)) {
    AddRoot(std::max(1, own));
    return;
  }
  const int32_t source = RandomBranch();
  int32_t at = Uniform(0, kv_len_[source]);
  bool empty_node = false;
  if (Chance(0.5)) {  // at the begin of a node on the path: wide nodes and empty ones
    int32_t node = branch_node_[source];
    for (int32_t up = Uniform(0, 3); up > 0 && node_parent_[node] != kNoParent; --up) node = node_parent_[node];
    if (node_parent_[node] != kNoParent) at = node_begin_[node];
    empty_node = Chance(options_.empty_node) && NodeAt(source, at) >= 0 && node_begin_[NodeAt(source, at)] == at;
  } else if (Chance(0.3)) {  // around a page boundary
    at = std::clamp(at / options_.page_size * options_.page_size + Uniform(-1, 1), 0, kv_len_[source]);
  }
  const int32_t extra = at + own == 0 ? 1 : 0;
  Fork(source, at, std::min(own + extra, options_.max_kv_len - at), empty_node);
}

int32_t RandomForest::NewNode(int32_t parent, int32_t begin, int32_t end) {
  const auto slot = std::ranges::find(node_parent_, kFreeSlot);
  COPPICE_CHECK(slot != node_parent_.end());
  const size_t n = slot - node_parent_.begin();
  node_parent_[n] = parent;
  node_begin_[n] = begin;
  node_end_[n] = end;
  return static_cast<int32_t>(n);
}

int32_t RandomForest::NewBranchSlot() {
  const auto slot = std::ranges::find(branch_node_, kFreeSlot);
  return slot == branch_node_.end() ? -1 : static_cast<int32_t>(slot - branch_node_.begin());
}

int32_t RandomForest::NewPage(int32_t before) {
  const bool follows = before >= 0 && options_.next_page > 0 && Chance(options_.next_page);
  int32_t page = follows ? (before + 1) % num_pages() : Uniform(0, num_pages() - 1);  // scattered, as after hours of serving
  while (page_refs_[page] != 0) page = (page + 1) % num_pages();
  page_refs_[page] = 1;
  return page;
}

void RandomForest::AppendToken(int32_t b) {
  const int32_t i = kv_len_[b]++;
  if (i % options_.page_size == 0) {
    int32_t* const page = &page_indices_[page_begin_[b] + i / options_.page_size];
    *page = NewPage(i > 0 ? page[-1] : -1);
  }
  tokens_[b].push_back(next_token_++);
}

int32_t RandomForest::Depth(int32_t node) const {
  int32_t depth = 0;
  for (; node != kNoParent; node = node_parent_[node]) ++depth;
  return depth;
}

// Nodes on the longest path from `node` down to a leaf.
int32_t RandomForest::Height(int32_t node) const {
  int32_t height = 0;
  for (const int32_t leaf : branch_node_) {
    if (leaf == kFreeSlot) continue;
    int32_t steps = 1;
    for (int32_t n = leaf; n != kNoParent; n = node_parent_[n], ++steps) {
      if (n == node) height = std::max(height, steps);
    }
  }
  return height;
}

// The lowest node of the branch's path that begins at or before `at`, or the one that begins exactly there and lies highest.
int32_t RandomForest::NodeAt(int32_t branch, int32_t at) const {
  int32_t node = branch_node_[branch];
  while (node_begin_[node] > at) node = node_parent_[node];
  while (node_parent_[node] != kNoParent && node_begin_[node] == at && node_begin_[node_parent_[node]] == at)
    node = node_parent_[node];
  return node;
}

}  // namespace coppice::attention::testing
