// The forest of this step beside that of the step before: what of the tree is new, among what the caller says changed or by
// comparing. Says nothing about plans.
// Layer: attention, private.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "attention/arena.h"
#include "attention/forest.h"
#include "attention/mark_set.h"
#include "coppice/attention/attention.h"
#include "core/check.h"

namespace coppice::attention {

class ForestHistory {
 public:
  void Layout(Arena& arena, const PlanCapacity& capacity) {
    indexes_[0].Layout(arena, capacity);
    indexes_[1].Layout(arena, capacity);
    named_.Layout(arena, capacity.max_nodes);
  }
  // The next step's forest, of which anything may have changed: ForestIndex::Build. Where that fails the one before it stays.
  Status Take(const PrefixForestView& forest, const PlanCapacity& capacity) {
    const bool names_changes = NamesChanges(forest);
    COPPICE_RETURN_IF_ERROR(before_->Build(forest, capacity, names_changes ? now_ : nullptr));
    std::swap(now_, before_);
    Keep(forest);
    names_changes_ = names_changes;
    if (names_changes_) {
      named_.Clear();
      for (const int32_t n : *forest.changed_nodes) named_.Mark(n);
    }
    return OkStatus();
  }
  // One of which only what a step may change did: ForestIndex::CheckStep.
  Status TakeStep(const PrefixForestView& forest, const PlanCapacity& capacity) {
    COPPICE_RETURN_IF_ERROR(now_->CheckStep(forest, capacity));
    Keep(forest);
    return OkStatus();
  }

  const ForestIndex& now() const { return *now_; }
  const ForestIndex& before() const { return *before_; }
  // As given to the last Take or TakeStep that succeeded; its nodes are copies, which are checked.
  const PrefixForestView& view() const { return view_; }

  // f(slot) of nodes with another parent, begin or end, of nodes that came and of those that left.
  template <class F>
  void ForEachChangedNode(F&& f) const {
    const Differ parent(now_->parent, before_->parent), begin(now_->begin, before_->begin), end(now_->end, before_->end);
    const auto changed = [&](int32_t n) { return parent(n) | begin(n) | end(n); };
    if (!names_changes_) return ForEachChanged(now_->num_nodes(), before_->num_nodes(), changed, f);
    named_.ForEach([&](int32_t n) {
      if (changed(n) != 0) f(n);
    });
  }
  // f(slot) of branches with another number of queries; 0 in a slot that is not there.
  template <class F>
  void ForEachRecountedBranch(F&& f) const {
    ForEachChanged(now_->num_branches(), before_->num_branches(), Differ(now_->query_count, before_->query_count), f);
  }
  // f(slot) of branches with another number of queries or another node, or a length below `least` or above `most`.
  template <class F>
  void ForEachChangedBranch(std::span<const int32_t> least, std::span<const int32_t> most, F&& f) const {
    const Differ count(now_->query_count, before_->query_count), node(now_->branch_node, before_->branch_node);
    const auto changed = [&, length = now_->kv_len.data(), least = least.data(), most = most.data()](int32_t b) {
      return count(b) | node(b) | static_cast<uint32_t>(length[b] < least[b]) | static_cast<uint32_t>(length[b] > most[b]);
    };
    ForEachChanged(now_->num_branches(), before_->num_branches(), changed, f);
  }

 private:
  // Of slot i: 0 where both arrays have the same.
  struct Differ {
    Differ(std::span<const int32_t> a, std::span<const int32_t> b) : a_(a.data()), b_(b.data()) {}
    uint32_t operator()(int32_t i) const { return static_cast<uint32_t>(a_[i] ^ b_[i]); }

   private:
    const int32_t *a_, *b_;
  };
  // f(i) for the slots that are not the same in both. Most are: whole blocks are compared at once. changed(i) is 0 where nothing
  // is.
  template <class Changed, class F>
  static void ForEachChanged(int32_t slots_now, int32_t slots_before, Changed&& changed, F&& f) {
    constexpr int32_t kBlock = 32;
    const int32_t common = std::min(slots_now, slots_before), count = std::max(slots_now, slots_before);
    for (int32_t begin = 0; begin < count; begin += kBlock) {
      const int32_t end = std::min(begin + kBlock, count);
      if (begin + kBlock <= common) {
        uint32_t any = 0;
        for (int32_t i = 0; i < kBlock; ++i) any |= changed(begin + i);  // a count that compilers vectorise
        if (any == 0) continue;
      }
      for (int32_t i = begin; i < end; ++i) {
        if (i >= common || changed(i) != 0) f(i);
      }
    }
  }

  // Whether changed_nodes has all that differs from the forest taken last. A version that went back is another forest's.
  bool NamesChanges(const PrefixForestView& forest) const {
    return forest.changed_nodes && forest.changed_since != 0 && forest.changed_since <= view_.version &&
           view_.version <= forest.version && forest.node_parent.size() == static_cast<size_t>(now_->num_nodes());
  }
  void Keep(const PrefixForestView& forest) {
    view_ = forest;
    view_.node_parent = now_->parent.first(now_->num_nodes());
    view_.node_begin = now_->begin.first(now_->num_nodes());
    view_.node_end = now_->end.first(now_->num_nodes());
  }

  ForestIndex indexes_[2];
  ForestIndex *now_ = &indexes_[0], *before_ = &indexes_[1];
  PrefixForestView view_;
  bool names_changes_ = false;
  MarkSet named_;  // of the last Take, where names_changes_
};

}  // namespace coppice::attention
