// Checks of the arguments of Context's calls, the same for all backends: INVALID_ARGUMENT or OUT_OF_RANGE with what, the value
// found and what is expected. A backend checks its own demands (alignment, dtypes) itself. Layer: attention, private.
#pragma once

#include <span>

#include "coppice/attention/attention.h"

namespace coppice::attention {

// The spec is one, and the view can be a layer of it.
Status CheckKvLayer(const AttentionSpec& spec, const KvLayerView& kv);
// A plan of this spec, page size and number of queries at most can run on this KV with these pointers. The caller checks that
// this backend bound the KV.
Status CheckRun(const AttentionSpec& spec, int32_t page_size, int32_t max_queries, const BoundKv& kv, const RunArgs& args);

Status CheckAppend(const AttentionSpec& spec, const AppendArgs& args);
// The mapping in host memory.
Status CheckSlots(const KvLayerView& kv, std::span<const int64_t> slot_mapping);
// The lists in host memory.
Status CheckPageCopies(const KvLayerView& kv, std::span<const PageCopy> copies);
Status CheckSlotMoves(const KvLayerView& kv, std::span<const SlotMove> moves);
Status CheckMerge(const StateView& into, std::span<const StateView> from, int64_t num_rows, int32_t num_heads, int32_t head_dim,
                  std::span<const uint8_t> mask);

}  // namespace coppice::attention
