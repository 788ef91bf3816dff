// Facts of a backend's kernels for the planner and the cost model. Layer: attention, private.
#pragma once

#include <cstdint>

#include "attention/plan_units.h"

namespace coppice::attention {

struct BackendTraits {
  int32_t workers = 1;            // tasks that run at the same moment (cores, or SMs x workers per SM)
  int32_t dense_tile_rows = 64;   // rows per dense tile; items of more rows are cut by the kernel or by the planner (max_item_rows)
  int32_t dense_min_rows = 8;     // below this a range is a stream tile
  int32_t dense_row_unit = 0;     // rows are padded to multiples of this in dense tiles; 0: of dense_min_rows
  int32_t stream_warps = 1;       // stream tasks that one worker runs at the same moment (an SM's warps)
  int32_t cooperative_warps = 0;  // of them, those that read a task together where each worker has one at most; 0: none do
  int32_t max_item_rows = 0;      // an item may serve at most this many rows (per kv head); 0: no limit
  int32_t kv_tile = 64;           // tokens per inner tile: cuts fall on multiples of it
  int32_t max_heads_per_task = 0;  // kv heads that one task may take; 0: no limit
  int32_t native_head_dim = 0;     // head_dim after on-chip padding (the cost of padding is shown by the plan)
  float stream_cache_share = 1;    // of the cache's rate, the part that stream tiles take KV at
  float dense_latency = 1;      // of a dense task of dense_row_unit rows or more alone on its worker, in those of the machine model
  int32_t two_column_rows = 0;  // rows from which a stream tile takes twice as long a token; 0: more than half of a tile's
  int32_t max_set_contributions = 0;                // contributions that a merge set may have before the backend cuts; 0: no limit
  int32_t deterministic_unit = kDeterministicUnit;  // kv indices of a unit in deterministic mode
  // Steps of at most so many queries, one a branch, that share nothing may run by a kernel of their own, whose price only the
  // backend's StepPricer knows; 0: there is none. Whether there is one of wide clusters, too (cuda/lower/short_steps.h).
  int32_t short_step_queries = 0;
  bool has_wide_short_steps = false;
  bool cuts_kv = false;  // the backend cuts ranges itself, along KV and rows: plans cut where deterministic mode does
};

}  // namespace coppice::attention
