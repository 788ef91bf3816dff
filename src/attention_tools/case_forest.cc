#include "attention_tools/case_forest.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "core/math.h"

namespace coppice::attention {
namespace {

constexpr int32_t kTokensToGrow = 128;  // of a request, beyond its own

}  // namespace

CaseForest::CaseForest(const AttentionCase& c, int32_t page_size, int32_t run_tokens) {
  std::vector<int32_t> leaves;
  for (size_t level = 0; level < c.nodes.size(); ++level) leaves = AddLevel(c, level, leaves, page_size);
  const int64_t page_bytes = int64_t{4} * page_size * c.kv_heads * c.head_dim;
  num_pages = static_cast<int32_t>(std::min<int64_t>(num_pages, kMostPoolBytes / page_bytes));
  const int32_t run = std::max(run_tokens / page_size, 1);  // pages
  std::vector<int32_t> shuffled(num_pages / run);
  std::iota(shuffled.begin(), shuffled.end(), 0);
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(1));
  for (std::vector<int32_t>& of_node : node_pages_) {
    for (int32_t& page : of_node) {
      page %= num_pages;
      if (page / run < std::ssize(shuffled)) page = shuffled[page / run] * run + page % run;
    }
  }
  view.page_size = page_size;
  const int32_t depth = std::accumulate(c.tokens.begin(), c.tokens.end(), 0);
  for (size_t i = 0; i < leaves.size(); ++i) AddBranch(leaves[i], c.QueriesOf(i), depth);
  view = {.page_size = page_size,
          .version = 1,
          .node_parent = parent,
          .node_begin = begin,
          .node_end = end,
          .branch_node = branch_node,
          .branch_query_begin = query_begin,
          .branch_query_count = query_count,
          .branch_kv_len = kv_len,
          .branch_page_begin = page_begin,
          .branch_page_capacity = page_capacity,
          .page_indices = pages};
}

std::vector<int32_t> CaseForest::AddLevel(const AttentionCase& c, size_t level, const std::vector<int32_t>& above,
                                          int32_t page_size) {
  const bool last = level + 1 == c.nodes.size();
  const int32_t first_token = std::accumulate(c.tokens.begin(), c.tokens.begin() + static_cast<std::ptrdiff_t>(level), 0);
  std::vector<int32_t> added;
  for (int64_t i = 0; i < c.nodes[level]; ++i) {
    const int32_t node_above = level == 0 ? kNoParent : above[i * c.nodes[level - 1] / c.nodes[level]];
    if (last && c.tokens[level] == 0) {
      added.push_back(node_above);
      continue;
    }
    added.push_back(static_cast<int32_t>(parent.size()));
    parent.push_back(node_above);
    begin.push_back(first_token);
    end.push_back(last ? kLive : first_token + c.tokens[level]);
    node_pages_.emplace_back(c.tokens[level] / page_size);
    for (int32_t& page : node_pages_.back()) page = num_pages++;
  }
  return added;
}

void CaseForest::AddBranch(int32_t leaf, int32_t queries, int32_t tokens) {
  query_begin.push_back(branch_node.empty() ? 0 : num_queries());
  branch_node.push_back(leaf);
  query_count.push_back(queries);
  kv_len.push_back(tokens);
  page_begin.push_back(static_cast<int32_t>(pages.size()));
  std::vector<int32_t> path;
  for (int32_t n = leaf; n != kNoParent; n = parent[n]) path.push_back(n);
  for (auto n = path.rbegin(); n != path.rend(); ++n) pages.insert(pages.end(), node_pages_[*n].begin(), node_pages_[*n].end());
  pages.insert(pages.end(), CeilDiv(kTokensToGrow, view.page_size), 0);
  page_capacity.push_back(static_cast<int32_t>(pages.size()) - page_begin.back());
}

int32_t CaseForest::BranchOf(int32_t row) const {
  return static_cast<int32_t>(std::ranges::upper_bound(query_begin, row) - query_begin.begin()) - 1;
}

std::vector<int32_t> CaseForest::RowsToCheck() const {
  const int32_t rows = num_queries(), middle = rows / 2 + 1;
  std::set<int32_t> checked = {0, middle < rows ? middle : 0, rows - 1};
  for (size_t branch = 1; branch < query_count.size(); ++branch) {
    if (query_count[branch] != query_count[branch - 1]) checked.insert({query_begin[branch] - 1, query_begin[branch]});
  }
  return {checked.begin(), checked.end()};
}

}  // namespace coppice::attention
