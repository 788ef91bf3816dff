// When the lanes of a worker read its task together, a step each in turn, and how long the pieces of a range are then. A lowering
// cuts by it, and the cost model prices steps by it that are not cut yet. Layer: attention, private.
#pragma once

#include <cstdint>

#include "attention/machine_model.h"

namespace coppice::attention {

// Whether a step whose tasks all stream is read by teams. tokens: of all tasks; tasks: before any cut.
bool TeamsRead(int64_t tasks, int64_t tokens, int64_t workers);

// An even part of the tokens, where it is no shorter than a piece may be.
int64_t EvenTeamPiece(int64_t tokens, int64_t parts);

// The tokens of a piece at most: `longest`, the longest range, where all stay whole; else `even`, for which each worker has a
// piece. merges: merge sets have several states, even if no range is cut.
int64_t TeamPiece(int64_t longest, int64_t even, bool merges, int32_t lanes, const SmRates& rates);

}  // namespace coppice::attention
