// The parts of a plan that are looked at again for a forest: nodes that changed and their ancestors, marked along the tree's order,
// so that unchanged ones cost nothing. Each stage visits the marked ones and marks those that inherit something new from them.
// Layer: attention, private.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "attention/arena.h"
#include "attention/forest.h"
#include "attention/mark_set.h"

namespace coppice::attention {

class PlanChanges {
 public:
  void Layout(Arena& arena, const PlanCapacity& capacity) {
    marks_.Layout(arena, capacity.max_nodes);
    members_changed_ = arena.Take<uint8_t>(capacity.max_nodes);
    branch_changed_ = arena.Take<uint8_t>(capacity.max_branches);
  }
  // Nothing changed yet.
  void Begin(const ForestIndex& forest) {
    forest_ = &forest;
    marks_.Clear();
    std::ranges::fill(members_changed_, 0);
    std::ranges::fill(branch_changed_, 0);
  }

  void MarkAll() { marks_.MarkFirst(static_cast<int32_t>(forest_->Preorder().size())); }
  void Mark(int32_t n) { marks_.Mark(forest_->position[n]); }
  void MarkChildren(int32_t n) {
    for (int32_t c = forest_->first_child[n]; c >= 0; c = forest_->next_sibling[c]) Mark(c);
  }
  // Of a node in any forest: nothing, where it is none of this one's.
  void MarkMembers(int32_t n) {
    if (n < 0 || n >= forest_->num_nodes() || forest_->parent[n] == kFreeSlot) return;
    Mark(n);
    members_changed_[n] = 1;
  }
  // The parent of a marked node changes with it.
  void PassUp(int32_t n) {
    const int32_t p = forest_->parent[n];
    if (p == kNoParent) return;
    Mark(p);
    members_changed_[p] |= members_changed_[n];
  }
  void MarkBranch(int32_t branch) { branch_changed_[branch] = 1; }

  bool members_changed(int32_t n) const { return members_changed_[n] != 0; }  // the list of merge sets below
  bool branch_changed(int32_t b) const { return branch_changed_[b] != 0; }    // its node or number of queries

  // f(node) for marked nodes, parents first; f may mark descendants. Upwards: children first; f may mark ancestors.
  template <class F>
  void ForEach(F&& f) const {
    marks_.ForEach([&](int32_t at) { f(forest_->Preorder()[at]); });
  }
  template <class F>
  void ForEachUpwards(F&& f) const {
    marks_.ForEachBackwards([&](int32_t at) { f(forest_->Preorder()[at]); });
  }

 private:
  const ForestIndex* forest_ = nullptr;
  MarkSet marks_;
  std::span<uint8_t> members_changed_;  // [N]
  std::span<uint8_t> branch_changed_;   // [B]
};

}  // namespace coppice::attention
