#include "attention/owned_forest.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "attention/forest.h"
#include "core/check.h"
#include "core/math.h"

namespace coppice::attention {
namespace {

class TreeBuilder {
 public:
  TreeBuilder(const UniformTree& tree, OwnedForest& forest) : tree_(tree), forest_(forest) {}

  // The nodes of `level` below `parent`, which ends at kv index `begin` and whose path holds `pages`.
  void AddLevel(size_t level, int32_t parent, int32_t begin, const std::vector<int32_t>& pages) {
    const TreeLevel& shape = tree_.levels[level];
    const int32_t end = begin + shape.tokens;
    const bool is_request = level + 1 == tree_.levels.size();
    for (int32_t i = 0; i < shape.fan_out; ++i) {
      if (is_request) {
        AddRequest(parent, begin, end, pages);
        continue;
      }
      const int32_t node = tree_.share ? forest_.AddNode(parent, begin, end) : kNoParent;
      std::vector<int32_t> path = pages;
      // A page belongs to the node of its last token; those below hold copies of earlier tokens (copy-on-write copies whole pages).
      while (tree_.share && static_cast<int32_t>(path.size() + 1) * tree_.page_size <= end) path.push_back(next_page_++);
      AddLevel(level + 1, node, end, path);
    }
  }

 private:
  void AddRequest(int32_t parent, int32_t begin, int32_t kv_len, std::vector<int32_t> pages) {
    while (static_cast<int32_t>(pages.size()) * tree_.page_size < kv_len + tree_.room_to_grow) pages.push_back(next_page_++);
    forest_.AddBranch(forest_.AddNode(parent, tree_.share ? begin : 0, kLive), kv_len, tree_.queries, pages);
  }

  const UniformTree& tree_;
  OwnedForest& forest_;
  int32_t next_page_ = 0;
};

Status CheckPageTables(const PageTables& tables) {
  const size_t count = tables.kv_len.size();
  for (const size_t size : {tables.begin.size(), tables.end.size(), tables.query_count.size()}) {
    if (size == count) continue;
    return InvalidArgument("page tables: " + std::to_string(size) + " entries for " + std::to_string(count) +
                           " lengths; expected as many");
  }
  int64_t rows = 0;
  for (size_t r = 0; r < count; ++r) {
    rows += tables.query_count[r];
    if (tables.query_count[r] < 0 || rows > kMaxRows) {
      return InvalidArgument("page tables: request " + std::to_string(r) + " has " + std::to_string(tables.query_count[r]) +
                             " queries; expected 0 or more, and at most " + std::to_string(kMaxRows) + " of all requests");
    }
    if (tables.begin[r] >= 0 && tables.begin[r] <= tables.end[r] && tables.end[r] <= std::ssize(tables.pages)) continue;
    return InvalidArgument("page tables: request " + std::to_string(r) + " has the entries [" + std::to_string(tables.begin[r]) +
                           ", " + std::to_string(tables.end[r]) + ") of " + std::to_string(tables.pages.size()));
  }
  return OkStatus();
}

// Makes nodes of what sorted page tables have in common with their neighbours.
class PageTableForest {
 public:
  PageTableForest(const PageTables& tables, OwnedForest& forest) : tables_(tables), forest_(forest) {}

  void Add() {
    const int32_t count = static_cast<int32_t>(tables_.kv_len.size());
    fronts_.reserve(count);
    for (int32_t r = 0; r < count; ++r) fronts_.push_back(Front(r));
    order_.resize(count);
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_,
                             [&](int32_t a, int32_t b) { return std::ranges::lexicographical_compare(fronts_[a], fronts_[b]); });
    common_.assign(count, 0);
    for (int32_t i = 1; i < count; ++i) {
      const std::span<const int32_t> a = fronts_[order_[i - 1]], b = fronts_[order_[i]];
      common_[i] = static_cast<int32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
    }
    ends_.assign(count, kNoParent);
    if (count > 0) runs_.push_back({.last = count});
    while (!runs_.empty()) {
      const Run run = runs_.back();
      runs_.pop_back();
      Divide(run);
    }
    for (int32_t r = 0; r < count; ++r) forest_.AddBranch(ends_[r], tables_.kv_len[r], tables_.query_count[r], Table(r));
  }

 private:
  // Requests order_[first .. last) below `parent`, which ends behind so many pages.
  struct Run {
    int32_t first = 0, last = 0, pages = 0, parent = kNoParent;
  };

  std::span<const int32_t> Table(int32_t r) const {
    return tables_.pages.subspan(tables_.begin[r], tables_.end[r] - tables_.begin[r]);
  }
  // The pages that all queries of the request see whole.
  std::span<const int32_t> Front(int32_t r) const {
    const int64_t seen_by_first = int64_t{tables_.kv_len[r]} - std::max(tables_.query_count[r], 1) + 1;
    const int64_t pages = std::max<int64_t>(seen_by_first, 0) / forest_.page_size;
    return Table(r).first(std::min<int64_t>(pages, tables_.end[r] - tables_.begin[r]));
  }

  void Divide(Run run) {
    if (run.last - run.first == 1) {
      const int32_t r = order_[run.first], begin = run.pages * forest_.page_size;
      const bool complete = run.parent != kNoParent && begin == tables_.kv_len[r];
      ends_[r] = complete ? run.parent : forest_.AddNode(run.parent, begin, kLive);
      return;
    }
    const int32_t shared = *std::min_element(common_.begin() + run.first + 1, common_.begin() + run.last);
    if (shared > run.pages) {
      run.parent = forest_.AddNode(run.parent, run.pages * forest_.page_size, shared * forest_.page_size);
    }
    int32_t first = run.first;
    for (int32_t i = run.first + 1; i <= run.last; ++i) {
      if (i < run.last && common_[i] > shared) continue;
      runs_.push_back({.first = first, .last = i, .pages = shared, .parent = run.parent});
      first = i;
    }
  }

  const PageTables& tables_;
  OwnedForest& forest_;
  std::vector<std::span<const int32_t>> fronts_;  // by request
  std::vector<int32_t> order_, common_;           // common_[i]: pages that order_[i] and the one before it begin with
  std::vector<int32_t> ends_;                     // by request, the node of its branch
  std::vector<Run> runs_;
};

}  // namespace

PrefixForestView OwnedForest::Forest() const {
  return {.page_size = page_size,
          .version = version,
          .node_parent = node_parent,
          .node_begin = node_begin,
          .node_end = node_end,
          .branch_node = branch_node,
          .branch_query_begin = branch_query_begin,
          .branch_query_count = branch_query_count,
          .branch_kv_len = branch_kv_len,
          .branch_page_begin = branch_page_begin,
          .branch_page_capacity = branch_page_capacity,
          .page_indices = page_indices,
          .query_tree_mask = query_tree_mask};
}

int32_t OwnedForest::AddNode(int32_t parent, int32_t begin, int32_t end) {
  node_parent.push_back(parent);
  node_begin.push_back(begin);
  node_end.push_back(end);
  return static_cast<int32_t>(node_parent.size()) - 1;
}

int32_t OwnedForest::AddBranch(int32_t node, int32_t kv_len, int32_t query_count, std::span<const int32_t> page_row) {
  branch_query_begin.push_back(branch_query_begin.empty() ? 0 : branch_query_begin.back() + branch_query_count.back());
  branch_query_count.push_back(query_count);
  branch_node.push_back(node);
  branch_kv_len.push_back(kv_len);
  branch_page_begin.push_back(static_cast<int32_t>(page_indices.size()));
  branch_page_capacity.push_back(static_cast<int32_t>(page_row.size()));
  page_indices.insert(page_indices.end(), page_row.begin(), page_row.end());
  return num_branches() - 1;
}

int32_t OwnedForest::num_queries() const {
  int32_t rows = 0;
  for (size_t b = 0; b < branch_query_count.size(); ++b) {
    if (branch_query_count[b] > 0) rows = std::max(rows, branch_query_begin[b] + branch_query_count[b]);
  }
  return rows;
}

int64_t OwnedForest::num_pages() const {
  int64_t pages = 0;
  for (size_t b = 0; b < branch_query_count.size(); ++b) {
    if (branch_query_count[b] == 0) continue;
    const auto row = std::span(page_indices).subspan(branch_page_begin[b], CeilDiv(branch_kv_len[b], page_size));
    for (const int32_t page : row) pages = std::max(pages, int64_t{page} + 1);
  }
  return pages;
}

int64_t OwnedForest::num_tokens() const {
  std::vector<int32_t> end = node_end;
  for (size_t n = 0; n < end.size(); ++n) {
    if (end[n] == kLive) end[n] = node_begin[n];
  }
  for (size_t b = 0; b < branch_node.size(); ++b) {
    const int32_t node = branch_node[b];
    if (branch_query_count[b] > 0 && node_end[node] == kLive) end[node] = std::max(end[node], branch_kv_len[b]);
  }
  return std::transform_reduce(end.begin(), end.end(), node_begin.begin(), int64_t{0}, std::plus<>(),
                               [](int32_t to, int32_t from) { return int64_t{to} - from; });
}

PlanCapacity OwnedForest::Capacity() const {
  return {.max_branches = num_branches(),
          .max_queries = num_queries(),
          .max_nodes = std::max(2 * num_branches(), static_cast<int32_t>(node_parent.size())),
          .max_page_slots = static_cast<int32_t>(page_indices.size()),
          .page_size = page_size};
}

void AddUniformTree(const UniformTree& tree, OwnedForest& forest) {
  forest.page_size = tree.page_size;
  TreeBuilder(tree, forest).AddLevel(0, kNoParent, 0, {});
}

Status AddPageTables(const PageTables& tables, OwnedForest& forest) {
  COPPICE_RETURN_IF_ERROR(CheckPageTables(tables));
  PageTableForest(tables, forest).Add();
  return OkStatus();
}

}  // namespace coppice::attention
