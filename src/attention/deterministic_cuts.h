// Where deterministic mode cuts a range along KV (plan.h, (a) to (d)), and how far: the list of work is cut by these rules, and the
// steps that a GPU's pricer weighs before they are planned. Layer: attention, private.
#pragma once

#include <cstdint>

#include "attention/plan_units.h"

namespace coppice::attention {

// Pieces of a range, the first from its begin on.
struct KvCuts {
  int32_t pieces = 0;                // 0: nothing is read
  int32_t unit_pieces = 0;           // deterministic mode: the first pieces that are single units
  int32_t first_cut = 0, chunk = 0;  // where piece max(1, unit_pieces) begins, and the distance of further cuts

  // Of a range that begins at range_begin. unit: of deterministic mode.
  int32_t PieceBegin(int32_t range_begin, int32_t unit, int32_t piece) const {
    if (piece == 0) return range_begin;
    if (piece < unit_pieces) return range_begin + piece * unit;
    return first_cut + (piece - (unit_pieces > 1 ? unit_pieces : 1)) * chunk;
  }
  bool operator==(const KvCuts&) const = default;
};

struct DeterministicRange {
  int32_t begin = 0, end = 0;       // an open end as far as the plan may have to hold
  int32_t contributions_above = 0;  // of its merge sets
  bool is_tile = false;             // of a branch; else of a shared node
};

// `pieces` are wanted; a range that begins inside a superblock has as many as it has units there. lowered: a GPU's lowering goes on
// from the pieces, which run apart.
KvCuts CutDeterministically(const DeterministicRange& range, int32_t pieces, int32_t unit, bool lowered);

}  // namespace coppice::attention
