// The forest of an AttentionCase as a cache would hold it after a long run: pages in random order, room for requests to grow.
// Layer: attention, private.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_tools/attention_cases.h"
#include "coppice/attention/attention.h"

namespace coppice::attention {

// Every node has pages of its own. Requests of a last level without tokens end with the nodes above. Of more than kMostPoolBytes of
// KV (16 bits an element) only that much exists, and its pages serve in turn: far more than an L2 holds.
// Thread-compatible. The view shows the vectors: elements may change, sizes may not.
struct CaseForest {
  static constexpr int64_t kMostPoolBytes = int64_t{64} << 30;

  PrefixForestView view;
  std::vector<int32_t> parent, begin, end;  // of nodes
  std::vector<int32_t> branch_node, query_begin, query_count, kv_len, page_begin, page_capacity;
  std::vector<int32_t> pages;
  int32_t num_pages = 0;

  // run_tokens: of pages that lie one after the other, a multiple of page_size; 0: of one page.
  // REQUIRES: tokens of each level are a multiple of page_size; no more chunks than requests.
  explicit CaseForest(const AttentionCase& c, int32_t page_size = 16, int32_t run_tokens = 0);
  CaseForest(const CaseForest&) = delete;
  CaseForest& operator=(const CaseForest&) = delete;

  int32_t num_queries() const { return query_begin.back() + query_count.back(); }
  int32_t BranchOf(int32_t row) const;
  // The first row, a middle one and the last, and beside a chunk its last row and the first one after it. Ascending.
  std::vector<int32_t> RowsToCheck() const;

 private:
  // Adds the nodes below `above` and returns their ids.
  std::vector<int32_t> AddLevel(const AttentionCase& c, size_t level, const std::vector<int32_t>& above, int32_t page_size);
  void AddBranch(int32_t leaf, int32_t queries, int32_t tokens);

  std::vector<std::vector<int32_t>> node_pages_;
};

}  // namespace coppice::attention
