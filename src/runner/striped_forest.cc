#include "runner/striped_forest.h"

#include <algorithm>

#include "core/check.h"

namespace coppice {
namespace {

constexpr size_t kVersions = 4;  // PrefixForestView::changed_since goes two steps back

// How many branches a step's branches become beyond themselves, at most: one for each query.
int32_t MaxPieces(const attention::PlanCapacity& capacity) { return capacity.max_queries; }

// Pieces end where a rank's tokens of a page do, or where a branch's queries begin or end.
int32_t MaxNewNodes(const TokenStripe& stripe, const attention::PlanCapacity& capacity) {
  const int64_t most = 2 * int64_t{capacity.max_branches} + 2 * int64_t{capacity.max_queries} / stripe.whole_page_size();
  return static_cast<int32_t>(std::min<int64_t>(most, capacity.max_queries));
}

}  // namespace

attention::PlanCapacity StripedForest::CapacityOf(const TokenStripe& stripe, attention::PlanCapacity capacity) {
  const int32_t nodes = capacity.max_nodes > 0 ? capacity.max_nodes : 2 * capacity.max_branches;
  capacity.max_nodes = nodes + MaxNewNodes(stripe, capacity);
  capacity.max_branches += MaxPieces(capacity);
  capacity.page_size = stripe.page_size;
  return capacity;
}

StripedForest::StripedForest(const TokenStripe& stripe, const attention::PlanCapacity& capacity) : stripe_(stripe) {
  const attention::PlanCapacity own = CapacityOf(stripe, capacity);
  for (auto* per_node : {&parent_, &begin_, &end_}) per_node->reserve(own.max_nodes);
  for (auto* per_branch : {&node_, &query_begin_, &query_count_, &kv_len_, &page_begin_, &page_capacity_, &counts_before_}) {
    per_branch->reserve(own.max_branches);
  }
  slots_.reserve(own.max_queries);
  versions_.reserve(kVersions + 1);
}

attention::PrefixForestView StripedForest::View(const attention::PrefixForestView& forest) {
  COPPICE_DCHECK(forest.page_size == stripe_.whole_page_size() && forest.query_tree_mask.empty());
  const bool had_pieces = has_pieces_;
  const bool same_nodes = !had_pieces && !versions_.empty() && versions_.back().of_forest == forest.version &&
                          parent_.size() == forest.node_parent.size();
  if (!same_nodes) TakeNodes(forest);
  std::swap(query_count_, counts_before_);
  TakeBranches(forest);

  const bool same = same_nodes && !has_pieces_ && query_count_ == counts_before_;
  const uint64_t since = had_pieces || has_pieces_ ? 0 : SinceOf(forest);
  if (!same) ++version_;
  if (has_pieces_) {
    versions_.clear();
  } else {
    versions_.push_back({.of_forest = forest.version, .of_view = version_});
    if (versions_.size() > kVersions) versions_.erase(versions_.begin());
  }

  attention::PrefixForestView view = forest;
  view.page_size = stripe_.page_size;
  view.version = version_;
  view.changed_since = since;
  if (since == 0) {
    view.changed_branches = {};
    view.changed_nodes.reset();
  }
  view.node_parent = parent_;
  view.node_begin = begin_;
  view.node_end = end_;
  view.branch_node = node_;
  view.branch_query_begin = query_begin_;
  view.branch_query_count = query_count_;
  view.branch_kv_len = kv_len_;
  view.branch_page_begin = page_begin_;
  view.branch_page_capacity = page_capacity_;
  return view;
}

std::span<const int64_t> StripedForest::Slots(std::span<const int64_t> slots) {
  slots_.resize(slots.size());
  std::ranges::transform(slots, slots_.begin(), [&](int64_t slot) { return stripe_.Slot(slot); });
  return slots_;
}

// The version of an earlier view since which the forest's lists have all that changed; 0: there is none.
uint64_t StripedForest::SinceOf(const attention::PrefixForestView& forest) const {
  if (forest.changed_since == 0) return 0;
  const auto found =
      std::ranges::find_if(versions_, [&](const Version& version) { return version.of_forest >= forest.changed_since; });
  return found == versions_.end() || found->of_forest > forest.version ? 0 : found->of_view;
}

void StripedForest::TakeNodes(const attention::PrefixForestView& forest) {
  const size_t nodes = forest.node_parent.size();
  parent_.assign(forest.node_parent.begin(), forest.node_parent.end());
  begin_.resize(nodes);
  end_.resize(nodes);
  for (size_t n = 0; n < nodes; ++n) {
    if (parent_[n] == attention::kFreeSlot) continue;
    begin_[n] = stripe_.Held(forest.node_begin[n]);
    end_[n] = forest.node_end[n] == attention::kLive ? attention::kLive : stripe_.Held(forest.node_end[n]);
  }
}

void StripedForest::TakeBranches(const attention::PrefixForestView& forest) {
  const size_t branches = forest.branch_node.size();
  node_.assign(forest.branch_node.begin(), forest.branch_node.end());
  query_begin_.assign(forest.branch_query_begin.begin(), forest.branch_query_begin.end());
  page_begin_.assign(forest.branch_page_begin.begin(), forest.branch_page_begin.end());
  page_capacity_.assign(forest.branch_page_capacity.begin(), forest.branch_page_capacity.end());
  query_count_.assign(branches, 0);
  kv_len_.assign(branches, 0);
  has_pieces_ = false;
  for (size_t b = 0; b < branches; ++b) {
    const int32_t count = forest.branch_query_count[b];
    if (count == 0) continue;
    kv_len_[b] = stripe_.Held(forest.branch_kv_len[b]);
    if (kv_len_[b] == 0) continue;
    query_count_[b] = 1;
    if (count > 1) CutBranch(forest, static_cast<int32_t>(b));
  }
}

// Tokens that the rank holds are seen by one query more each: their queries stay together. A query of another rank's token sees as
// many as the one before it, and is a piece by itself.
void StripedForest::CutBranch(const attention::PrefixForestView& forest, int32_t branch) {
  const int32_t end_kv = forest.branch_kv_len[branch], begin_kv = end_kv - forest.branch_query_count[branch];
  const int32_t query_begin = forest.branch_query_begin[branch];
  // Queries before the rank's first token see none.
  for (int32_t kv = std::max(begin_kv, stripe_.index * stripe_.page_size); kv < end_kv;) {
    const int32_t first = kv, seen_before = stripe_.Held(kv);
    ++kv;
    if (stripe_.Held(kv) > seen_before) {
      while (kv < end_kv && stripe_.Held(kv + 1) > stripe_.Held(kv)) ++kv;
    }
    const Piece piece = {.query_begin = query_begin + first - begin_kv, .query_count = kv - first, .kv_len = stripe_.Held(kv)};
    if (kv < end_kv) {
      AddPiece(branch, piece);
    } else {
      query_begin_[branch] = piece.query_begin;
      query_count_[branch] = piece.query_count;
    }
  }
}

void StripedForest::AddPiece(int32_t branch, const Piece& piece) {
  has_pieces_ = true;
  node_.push_back(NodeEndingAt(node_[branch], piece.kv_len));
  query_begin_.push_back(piece.query_begin);
  query_count_.push_back(piece.query_count);
  kv_len_.push_back(piece.kv_len);
  page_begin_.push_back(page_begin_[branch]);
  page_capacity_.push_back(page_capacity_[branch]);
}

int32_t StripedForest::NodeEndingAt(int32_t node, int32_t end) {
  while (begin_[node] >= end) node = parent_[node];
  if (end_[node] == end) return node;
  const auto upper = static_cast<int32_t>(parent_.size());
  parent_.push_back(parent_[node]);
  begin_.push_back(begin_[node]);
  end_.push_back(end);
  parent_[node] = upper;
  begin_[node] = end;
  return upper;
}

}  // namespace coppice
