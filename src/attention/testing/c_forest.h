// A forest of two branches over one shared node, as the C ABI takes it. Layer: attention, tests.
#pragma once

#include <array>
#include <cstdint>

#include "coppice/attention/attention_c.h"

namespace coppice::attention::testing {

// One query a branch. The arrays that `view` refers to may be edited.
struct CForest {
  static constexpr int32_t kRow = 4;  // pages of a branch's row

  // Of `prefix` shared tokens, `lengths` in all.
  CForest(int32_t page_size, int32_t prefix, std::array<int32_t, 2> lengths, std::array<int32_t, 2 * kRow> pages)
      : node_begin{0, prefix, prefix}, node_end{prefix, COPPICE_KV_LIVE, COPPICE_KV_LIVE}, kv_len(lengths), page_indices(pages) {
    view.struct_size = sizeof(view);
    view.page_size = page_size;
    view.version = 1;
    view.num_nodes = 3;
    view.node_parent = node_parent.data();
    view.node_begin = node_begin.data();
    view.node_end = node_end.data();
    view.num_branches = 2;
    view.branch_node = branch_node.data();
    view.branch_query_begin = query_begin.data();
    view.branch_query_count = query_count.data();
    view.branch_kv_len = kv_len.data();
    view.branch_page_begin = page_begin.data();
    view.branch_page_capacity = page_capacity.data();
    view.num_page_slots = 2 * kRow;
    view.page_indices = page_indices.data();
  }
  CForest(const CForest&) = delete;
  CForest& operator=(const CForest&) = delete;

  std::array<int32_t, 3> node_parent = {COPPICE_NO_PARENT, 0, 0}, node_begin, node_end;
  std::array<int32_t, 2> branch_node = {1, 2}, query_begin = {0, 1}, query_count = {1, 1}, kv_len;
  std::array<int32_t, 2> page_begin = {0, kRow}, page_capacity = {kRow, kRow};
  std::array<int32_t, 2 * kRow> page_indices;
  coppice_prefix_forest view{};
};

}  // namespace coppice::attention::testing
