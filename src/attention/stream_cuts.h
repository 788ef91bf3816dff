// How stream items are cut along KV where the warps of a worker stream at the same moment: a piece a warp, or a cooperative task's,
// which all warps read together, a step each in turn. A lowering cuts by these rules, and the cost model prices steps by them that
// are not cut yet. Layer: attention, private. docs/kernels/hopper.md.
#pragma once

#include <cstdint>

#include "attention/machine_model.h"
#include "attention/plan_units.h"

namespace coppice::attention {

// The shortest piece, in tokens, where all warps have work: a shorter one costs more to start than it evens out. And the most that
// the shortest piece is, however much there is to read.
inline constexpr int32_t kMinStreamPiece = 8 * kStreamStepTokens, kMaxShortStreamPiece = 2 * kMinStreamPiece;

struct StreamPieces {
  int32_t shortest = 0, longest = 0;  // tokens
};

// Of a step with so many tokens for each warp of the machine; `warps` of one worker.
StreamPieces StreamPiecesOf(double tokens_per_warp, int32_t warps);

// In how many pieces a range is done first that takes read_ns to read and fold_ns to fold one more state of; at least 1.
int64_t PiecesDoneFirst(double read_ns, double fold_ns);

// Whether a step whose tasks all stream has cooperative ones. tokens: of all tasks; tasks: before any cut.
bool StreamsCooperatively(int64_t tasks, int64_t tokens, int64_t workers);

// An even part of the tokens, where it is no shorter than a cooperative piece may be.
int64_t EvenCooperativePiece(int64_t tokens, int64_t parts);

// The tokens of a cooperative piece at most: `longest`, the longest range, where all stay whole; else `even`, for which each worker
// has a piece. merges: merge sets have several states, even if no range is cut.
int64_t CooperativePiece(int64_t longest, int64_t even, bool merges, int32_t warps, const SmRates& rates);

}  // namespace coppice::attention
