// The rule of teams. docs/kernels/hopper.md, "Teams". Layer: attention.
#include "attention/team_cuts.h"

#include <algorithm>

#include "attention/plan_units.h"

namespace coppice::attention {
namespace {

// The shortest piece, six steps of a lane, and the most tokens a worker that teams read.
constexpr int64_t kMinTeamPiece = 6 * kStreamStepTokens, kMostTeamTokens = 16384;

}  // namespace

bool TeamsRead(int64_t tasks, int64_t tokens, int64_t workers) { return tasks <= workers && tokens <= kMostTeamTokens * workers; }

int64_t EvenTeamPiece(int64_t tokens, int64_t parts) { return std::max(kMinTeamPiece, CeilDiv(tokens, parts)); }

int64_t TeamPiece(int64_t longest, int64_t even, bool merges, int32_t lanes, const SmRates& rates) {
  const auto steps_ns = [&](int64_t tokens) {
    return static_cast<double>(CeilDiv(tokens, int64_t{kStreamStepTokens} * lanes)) * rates.team_short_step_ns;
  };
  const double merge_ns = merges ? 0 : rates.team_merge_ns;
  return steps_ns(longest) <= steps_ns(std::min(even, longest)) + merge_ns ? longest : even;
}

}  // namespace coppice::attention
