// What differs from the forest of the last replanning, and what of the plan goes with it: marks the nodes that the stages after it
// look at. Layer: attention.
#include "attention/plan.h"

#include <algorithm>
#include <climits>
#include <utility>

namespace coppice::attention {
namespace {

// Slots of the arrays of a forest and of the one before it.
struct Slots {
  int32_t now, old;
};
// f(i) for the slots that are not the same in both. Most are, which whole blocks tell at once. changed(i) is 0 where nothing is.
template <class Changed, class F>
void ForEachChanged(Slots slots, Changed&& changed, F&& f) {
  constexpr int32_t kBlock = 32;
  const int32_t common = std::min(slots.now, slots.old), count = std::max(slots.now, slots.old);
  for (int32_t begin = 0; begin < count; begin += kBlock) {
    const int32_t end = std::min(begin + kBlock, count);
    uint32_t any = end > common;
    if (any == 0) {
      for (int32_t i = begin; i < end; ++i) any |= changed(i);
    }
    if (any == 0) continue;
    for (int32_t i = begin; i < end; ++i) {
      if (i >= common || changed(i) != 0) f(i);
    }
  }
}

}  // namespace

// A dirty node is looked at by every stage. Dirt spreads to ancestors (SumUpwards), and to children where what they inherit
// changed.
void Planner::MarkAll() { dirty_.MarkFirst(static_cast<int32_t>(index_->Preorder().size())); }

void Planner::MarkChildren(int32_t n) {
  for (int32_t c = index_->first_child[n]; c >= 0; c = index_->next_sibling[c]) dirty_.Mark(index_->position[c]);
}

void Planner::ReleaseBlocks() {
  std::ranges::fill(items_.first(item_pool_.used()), WorkItem{});  // blocks have slots that no item takes
  item_pool_.Clear();
  member_pool_.Clear();
  contribution_pool_.Clear();
  state_pool_.Clear();
  std::ranges::fill(emitted_, Geometry{});
  std::ranges::fill(blocks_, Blocks{});
  std::ranges::fill(set_capacity_, 0);
  MarkAll();
}

void Planner::FindChanges() {
  dirty_.Clear();
  std::ranges::fill(members_changed_, 0);
  std::ranges::fill(branch_changed_, 0);
  if (!planned_) {
    ReleaseBlocks();
    num_free_sets_ = 0;
    for (int32_t set = sizes_.max_merge_sets - 1; set >= capacity_.max_branches; --set) free_sets_[num_free_sets_++] = set;
    std::ranges::fill(hold_min_, INT32_MIN);
    std::ranges::fill(hold_max_, INT32_MAX);
    for (int32_t b = 0; b < index_->num_branches(); ++b) CreateSets(b, index_->query_count[b]);
    return;
  }
  const ForestIndex &now = *index_, &old = *previous_;
  const auto mark = [&](int32_t n) {
    if (n < 0 || n >= now.num_nodes() || now.parent[n] == kFreeSlot) return;
    dirty_.Mark(now.position[n]);
    members_changed_[n] = 1;
  };
  const Slots nodes = {.now = now.num_nodes(), .old = old.num_nodes()};
  const auto differ = [](std::span<const int32_t> a, std::span<const int32_t> b) {
    return [a = a.data(), b = b.data()](int32_t i) { return static_cast<uint32_t>(a[i] ^ b[i]); };
  };
  const auto parent = differ(now.parent, old.parent), begin = differ(now.begin, old.begin), end = differ(now.end, old.end);
  const auto node_changed = [&](int32_t n) { return parent(n) | begin(n) | end(n); };
  ForEachChanged(nodes, node_changed, [&](int32_t n) {
    const int32_t new_parent = n < nodes.now ? now.parent[n] : kFreeSlot;
    const int32_t old_parent = n < nodes.old ? old.parent[n] : kFreeSlot;
    mark(n);
    mark(new_parent);
    mark(old_parent);
    if (new_parent == kFreeSlot && old_parent != kFreeSlot) {
      RetireOwner(n);
      step_tokens_ -= nodes_[n].step_tokens;
      step_compute_ps_ -= nodes_[n].step_compute_ps;
      SetReadTokens(nodes_[n], 0);
      CountDecision(nodes_[n], -1);
      nodes_[n] = {};
    }
  });
  const Slots branches = {.now = now.num_branches(), .old = old.num_branches()};
  const auto count_of = [](const ForestIndex& index, int32_t b) { return b < index.num_branches() ? index.query_count[b] : 0; };
  // All of them give back before anyone takes: merge sets suffice for one step's queries.
  const auto count = differ(now.query_count, old.query_count), node = differ(now.branch_node, old.branch_node);
  ForEachChanged(branches, count, [&](int32_t b) { RetireBranch(b); });
  const auto branch_changed = [&, length = now.kv_len.data(), least = hold_min_.data(), most = hold_max_.data()](int32_t b) {
    return count(b) | node(b) | static_cast<uint32_t>(length[b] < least[b]) | static_cast<uint32_t>(length[b] > most[b]);
  };
  ForEachChanged(branches, branch_changed, [&](int32_t b) {
    const int32_t new_count = count_of(now, b), old_count = count_of(old, b);
    if (new_count == 0 && old_count == 0) return;
    const int32_t new_node = new_count > 0 ? now.branch_node[b] : kFreeSlot;
    const int32_t old_node = old_count > 0 ? old.branch_node[b] : kFreeSlot;
    if (new_count == old_count && new_node == old_node) {  // its length matters
      dirty_.Mark(now.position[new_node]);
      return;
    }
    if (new_count != old_count) CreateSets(b, new_count);
    branch_changed_[b] = 1;
    mark(new_node);
    mark(old_node);
  });
  if (now.has_tree_mask() != old.has_tree_mask()) MarkAll();
  if (options_.policy == SharePolicy::kOneLevel && now.ActiveBranches().size() != old.ActiveBranches().size()) MarkAll();
}

// Finds the lengths of a branch that would change nothing but the live end of its last item.
void Planner::HoldLengths(int32_t b) {
  const int32_t n = index_->branch_node[b], length = index_->kv_len[b], count = index_->query_count[b];
  const int32_t leaf_begin = index_->begin[n];
  grows_[b] = Grows(b);
  hold_min_[b] = hold_max_[b] = length;
  const bool queries_in_shared_node = length - count < leaf_begin;
  const Owner& owner = owners_[TileOwner(b)];
  const bool cut_ahead = spec_.deterministic && owner.contributions_above > 0;  // for the present length
  if (!grows_[b] || spec_.window > 0 || queries_in_shared_node || owner.pieces > 1 || cut_ahead) return;
  const LengthClass planned = PlannedClass(leaf_begin, length);
  hold_min_[b] = std::max(planned.first, leaf_begin + count);
  hold_max_[b] = planned.last;
}

void Planner::CreateSets(int32_t branch, int32_t query_count) {
  const int32_t count = static_cast<int32_t>(CeilDiv(query_count, set_queries_));
  branch_sets_[branch] = count;
  int32_t previous = -1;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t set = i == 0 ? branch : free_sets_[--num_free_sets_];
    const int32_t first = i * set_queries_;
    sets_[set] = {.branch = branch, .query_begin = first, .query_count = std::min(set_queries_, query_count - first)};
    set_capacity_[set] = 0;
    if (previous >= 0) next_set_[previous] = set;
    next_set_[set] = -1;
    previous = set;
  }
  CountBranch(branch, query_count, 1);
}

void Planner::RetireBranch(int32_t branch) {
  int32_t set = branch, query_count = 0;
  for (int32_t i = 0; i < branch_sets_[branch]; ++i) {
    const int32_t next = next_set_[set];
    query_count += sets_[set].query_count;
    CountContributions(sets_[set], -1);
    RetireOwner(TileOwner(set));
    contribution_pool_.Free(sets_[set].contribution_begin, set_capacity_[set]);
    set_capacity_[set] = 0;
    sets_[set] = {};
    if (i > 0) free_sets_[num_free_sets_++] = set;
    set = next;
  }
  CountBranch(branch, query_count, -1);
  branch_sets_[branch] = 0;
  grows_[branch] = 0;
  hold_min_[branch] = INT32_MIN;
  hold_max_[branch] = INT32_MAX;
}

void Planner::RetireOwner(int32_t owner) {
  FreeBlocks(owner);
  SetOwner(owner, {});
  SetNeeds(owner, {});
  SetItem(unshared_, owner, {});
  SetItem(wanted_, owner, {});
}

void Planner::SetOwner(int32_t id, const Owner& owner) {
  step_ps_ -= owners_[id].step_ps;
  owners_[id] = owner;
  step_ps_ += owner.step_ps;
}

void Planner::SetNeeds(int32_t owner, const Needs& needs) {
  total_needs_ -= needs_[owner];
  needs_[owner] = needs;
  total_needs_ += needs;
}

}  // namespace coppice::attention
