// The shapes that the GPU's attention is measured and tested on: the cases, trees and hybrid batches of docs/kernels/hopper.md, and
// the grid of one prefix under many requests on which a plan may nowhere lose to sharing nothing. Layer: attention, private.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/owned_forest.h"
#include "coppice/attention/attention.h"

namespace coppice::attention {

// The cost of one read of KV: bytes of K and V (16 bits an element), and operations, 4 head_dim a visible (row, token) pair.
struct CasePass {
  double bytes = 0, flops = 0;
};

// A balanced tree; the nodes of the last level are the requests.
struct AttentionCase {
  std::string name;
  int32_t qo_heads = 0, kv_heads = 0, head_dim = 0;
  std::vector<int32_t> nodes, tokens;  // of each level; tokens of one node
  int32_t queries = 1;                 // of each request; more than one: a prefill chunk at the end of its context
  double goal_ms = 0, peer_ms = 0;     // on an H200; 0: none
  std::vector<int32_t> chunks = {};    // queries of each of the first requests, where they are chunks of prompts beside decode

  AttentionSpec Spec() const { return {.num_qo_heads = qo_heads, .num_kv_heads = kv_heads, .head_dim = head_dim}; }
  std::vector<TreeLevel> Levels() const;
  int32_t QueriesOf(size_t request) const { return request < chunks.size() ? chunks[request] : queries; }
  // Passes of a kernel that runs them one after the other and reads every shared token once: one a level, but in the last, whose
  // nodes have one request each, one for each number of queries. REQUIRES: no more chunks than requests, and no queries above the
  // last level.
  std::vector<CasePass> Passes() const;
};

// A1 to F, tree1 to tree14, three chunks of prompts (G...), and five hybrid batches: a chunk and decode rows in one plan (H...).
std::vector<AttentionCase> HopperCases();

// One prefix of P tokens under B requests of U tokens each, 32/32, 32/8 and 8/1 heads, named as "8/1:P+UxB", but for cells that
// would read more than 40 GB if nothing were shared: there sharing saves most of the bytes. left_out counts those.
std::vector<AttentionCase> SweepCases(int* left_out = nullptr);
inline constexpr double kMostSweepBytes = 40e9;

}  // namespace coppice::attention
