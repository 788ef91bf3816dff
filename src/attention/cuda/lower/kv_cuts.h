// Where items are cut along KV: plans leave ranges whole for a GPU (BackendTraits::cuts_kv), and blocks of 128 rows in SMs and
// stream tiles in warps are cut, with states of their own, until all SMs and warps have work to the end. Layer: attention/cuda.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attention/cuda/lower/sm_costs.h"
#include "attention/cuda/lower/step_ranges.h"
#include "attention/stream_cuts.h"

namespace coppice::attention::cuda {

// How stream items are cut, in tokens.
struct StreamCuts {
  StreamPieces pieces;            // of a warp each, guided: half of what is left of an item, within these
  int32_t cooperative_piece = 0;  // > 0: the stream warps of a CTA read each task together, and pieces are this long
};

// merges: whether a merge set has several items, even if these stay whole; asked only where that matters.
StreamCuts ChooseStreamCuts(std::span<const QueuedItem> items, int32_t heads, const std::function<bool()>& merges, int num_sms,
                            const SmCosts& costs);

// The most pieces that CutDenseItem makes, which rounds them up to whole dense steps.
int64_t DensePieces(const QueuedItem& item, int32_t longest, const SmCosts& costs);

// Each appends the ends of all pieces but the last, which is open, to `ends`. most: pieces.
void CutEvenly(int32_t tokens, int64_t count, int64_t unit, std::vector<int32_t>& ends);
// longest: tokens of a piece, but for the last one of a tile that is shorter than its prompt's longest.
void CutDenseItem(const QueuedItem& item, int32_t longest, int64_t most, const SmCosts& costs, std::vector<int32_t>& ends);
void CutStreamItem(const QueuedItem& item, const StreamCuts& cuts, int64_t most, const SmCosts& costs, std::vector<int32_t>& ends);

}  // namespace coppice::attention::cuda
