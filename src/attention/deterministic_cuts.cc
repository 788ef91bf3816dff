// The rules of deterministic_cuts.h. Layer: attention.
#include "attention/deterministic_cuts.h"

#include <algorithm>

namespace coppice::attention {

KvCuts CutDeterministically(const DeterministicRange& range, int32_t pieces, int32_t unit, bool lowered) {
  const int32_t superblock = kSuperblockUnits * unit;
  if (range.is_tile && range.contributions_above == 0 && pieces == 1) return {.pieces = 1};  // (d)
  KvCuts cuts{.first_cut = RoundUp(range.begin, superblock), .chunk = superblock};
  // (b) units up to the next superblock, (a) superblocks from there on.
  cuts.unit_pieces = CeilDiv(std::min(cuts.first_cut, range.end) - range.begin, unit);
  const auto superblocks = CeilDiv(std::max(0, range.end - cuts.first_cut), superblock);
  cuts.pieces = std::max(1, cuts.unit_pieces + superblocks);
  if (cuts.unit_pieces > 0) return cuts;
  if (lowered && superblocks == 1 && pieces > 1) {  // (a) its even part of the units, and (b) the others
    const auto units = CeilDiv(range.end - range.begin, unit);
    const auto first_units = CeilDiv(units, pieces);
    return {.pieces = 1 + units - first_units, .first_cut = range.begin + first_units * unit, .chunk = unit};
  }
  int32_t first_superblocks = 1;
  if (range.contributions_above == 0) {  // (c): the first item takes the whole superblocks that need no cut, or its even part
    const int32_t whole = (range.end - range.begin) / superblock;
    const auto even = CeilDiv(superblocks, pieces);
    first_superblocks = std::clamp(lowered ? even : superblocks - pieces + 1, 1, std::max(1, whole));
    cuts.pieces = std::max(1, 1 + superblocks - first_superblocks);
  }
  cuts.first_cut = range.begin + first_superblocks * superblock;
  return cuts;
}

}  // namespace coppice::attention
