// The rules of stream_cuts.h. Layer: attention.
#include "attention/stream_cuts.h"

#include <algorithm>
#include <cmath>

namespace coppice::attention {
namespace {

// A piece is between these parts of a warp's tokens. Longest first, the last pieces to be drawn are the shortest and even
// out the end.
constexpr double kLongestPiece = 0.55, kShortestPiece = 0.5;
// Where a worker has less than the shortest piece for all of its warps to read, time is the latency of a lone warp's steps, and
// other workers are idle. The shortest piece is this part of what a worker has then, two steps at least: one loads while the other
// is computed.
constexpr double kShortestPieceOfWorker = 0.3;
constexpr int32_t kMinPieceOfFew = 2 * kStreamStepTokens;

// The shortest piece of a cooperative task, six steps of a warp, and the most tokens a worker of such tasks.
constexpr int64_t kMinCooperativePiece = 6 * kStreamStepTokens, kMostCooperativeTokens = 16384;

}  // namespace

StreamPieces StreamPiecesOf(double tokens_per_warp, int32_t warps) {
  const double fewest = std::clamp<double>(kShortestPieceOfWorker * warps * tokens_per_warp, kMinPieceOfFew, kMinStreamPiece);
  const auto shortest = static_cast<int32_t>(std::clamp<double>(kShortestPiece * tokens_per_warp, fewest, kMaxShortStreamPiece));
  return {.shortest = shortest, .longest = static_cast<int32_t>(std::max<double>(shortest, kLongestPiece * tokens_per_warp))};
}

// n pieces take read_ns / n to read and n folds: least together at the root of their ratio.
int64_t PiecesDoneFirst(double read_ns, double fold_ns) { return std::max(1L, std::lround(std::sqrt(read_ns / fold_ns))); }

bool StreamsCooperatively(int64_t tasks, int64_t tokens, int64_t workers) {
  return tasks <= workers && tokens <= kMostCooperativeTokens * workers;
}

int64_t EvenCooperativePiece(int64_t tokens, int64_t parts) { return std::max(kMinCooperativePiece, CeilDiv(tokens, parts)); }

int64_t CooperativePiece(int64_t longest, int64_t even, bool merges, int32_t warps, const SmRates& rates) {
  const auto steps_ns = [&](int64_t tokens) {
    return static_cast<double>(CeilDiv(tokens, int64_t{kStreamStepTokens} * warps)) * rates.cooperative_short_step_ns;
  };
  const double merge_ns = merges ? 0 : rates.cooperative_merge_ns;
  return steps_ns(longest) <= steps_ns(std::min(even, longest)) + merge_ns ? longest : even;
}

}  // namespace coppice::attention
