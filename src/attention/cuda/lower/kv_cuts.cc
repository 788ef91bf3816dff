// The rules of cuts. Layer: attention/cuda.
#include "attention/cuda/lower/kv_cuts.h"

#include <algorithm>
#include <optional>

#include "attention/cuda/kernel_config.h"
#include "attention/cuda/lower/cut_rules.h"
#include "attention/plan_units.h"
#include "attention/stream_cuts.h"

namespace coppice::attention::cuda {
namespace {

// Where each SM can have a stream task of its own, and no more, the task is cooperative: the SM's warps read it, a step each in
// turn. As much is under way as with a task a warp, with an eighth of the states to fold (docs/kernels/hopper.md, "Cooperative
// stream tasks"). The length of its pieces: whole items, or as many pieces as there are SMs; 0 where the stream warps of a CTA have
// a task each.
int32_t ChooseCooperativePiece(std::span<const QueuedItem> items, int64_t heads, const std::function<bool()>& merges, int num_sms,
                               const SmCosts& costs) {
  const auto blocks = [&](const QueuedItem& item) { return CeilDiv(item.rows, kStreamRows) * heads; };
  const auto tasks = [&](int32_t piece) {
    int64_t count = 0;
    for (const QueuedItem& item : items) count += std::max<int64_t>(CeilDiv(item.tokens, piece), 1) * blocks(item);
    return count;
  };
  if (costs.path() != KernelPath::kHopper) return 0;
  const std::optional<int64_t> tokens = CooperativeTokens(items, heads, num_sms);
  if (!tokens) return 0;
  int32_t longest = 1;
  for (const QueuedItem& item : items) longest = std::max(longest, item.tokens);
  auto even = static_cast<int32_t>(RoundUp(EvenCooperativePiece(*tokens, num_sms), kStreamStepTokens));
  while (even < longest && tasks(even) > num_sms) even += kStreamStepTokens;
  return static_cast<int32_t>(CooperativePiece(longest, even, merges(), kStreamWarpsPerSm, costs.rates()));
}

void CutGuided(int32_t tokens, int32_t shortest, int32_t longest, int64_t most, std::vector<int32_t>& ends) {
  if (tokens <= longest + longest / 4) return;
  for (int32_t end = 0; --most > 0;) {
    const int32_t left = tokens - end;
    const auto piece = RoundUp(std::clamp(left / 2, shortest, longest), kStreamStepTokens);
    if (left < piece + shortest / 2) return;
    ends.push_back(end += piece);
  }
}

int64_t EvenPiece(int64_t tokens, int64_t count, int64_t unit) { return RoundUp(CeilDiv(tokens, count), unit); }

}  // namespace

int64_t DensePieces(const QueuedItem& item, int32_t longest, const SmCosts& costs) {
  const int64_t count = CeilDiv(item.cut_tokens, longest);
  if (item.tokens == item.cut_tokens || count == 1) return count;
  const int64_t piece = EvenPiece(item.cut_tokens, count, costs.dense_piece_unit());
  return 1 + std::max<int64_t>(0, item.tokens - piece / 2) / piece;
}

StreamCuts ChooseStreamCuts(std::span<const QueuedItem> items, int32_t heads, const std::function<bool()>& merges, int num_sms,
                            const SmCosts& costs) {
  int64_t tokens = 0;  // each counted once for every block of rows and kv head
  for (const QueuedItem& item : items) {
    if (!item.dense) tokens += int64_t{item.tokens} * CeilDiv(item.rows, kStreamRows) * heads;
  }
  const double tokens_per_warp = static_cast<double>(tokens) / (int64_t{num_sms} * kStreamWarpsPerSm);
  return {.pieces = StreamPiecesOf(tokens_per_warp, kStreamWarpsPerSm),
          .cooperative_piece = ChooseCooperativePiece(items, heads, merges, num_sms, costs)};
}

void CutEvenly(int32_t tokens, int64_t count, int64_t unit, std::vector<int32_t>& ends) {
  if (count <= 1) return;
  const int64_t piece = EvenPiece(tokens, count, unit);
  for (int64_t end = piece; end < tokens; end += piece) ends.push_back(static_cast<int32_t>(end));
}

void CutDenseItem(const QueuedItem& item, int32_t longest, int64_t most, const SmCosts& costs, std::vector<int32_t>& ends) {
  const int64_t count = std::min<int64_t>(CeilDiv(item.cut_tokens, longest), most);
  if (count <= 1) return;
  // Of a tile that ends before its prompt's longest one the last piece is whatever is left, no less than half of the others.
  const int64_t piece = EvenPiece(item.cut_tokens, count, costs.dense_piece_unit());
  const int64_t least = item.tokens < item.cut_tokens ? piece / 2 : 1;
  for (int64_t end = piece; end + least <= item.tokens; end += piece) ends.push_back(static_cast<int32_t>(end));
}

void CutStreamItem(const QueuedItem& item, const StreamCuts& cuts, int64_t most, const SmCosts& costs, std::vector<int32_t>& ends) {
  if (cuts.cooperative_piece > 0) {
    CutEvenly(item.tokens, std::min<int64_t>(CeilDiv(item.tokens, cuts.cooperative_piece), most), kStreamStepTokens, ends);
    return;
  }
  if (item.tokens <= cuts.pieces.longest) return;
  const int64_t useful = PiecesDoneFirst(item.tokens * costs.rates().stream_token_ns, costs.FoldNs(item.rows));
  const int64_t fewest_tokens = CeilDiv(item.tokens, std::clamp<int64_t>(useful, 1, std::max<int64_t>(most, 1)));
  const auto least = static_cast<int32_t>(std::max<int64_t>(cuts.pieces.shortest, fewest_tokens));
  CutGuided(item.tokens, least, std::max(least, cuts.pieces.longest), most, ends);
}

}  // namespace coppice::attention::cuda
