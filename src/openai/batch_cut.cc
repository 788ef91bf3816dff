#include "openai/batch_cut.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/check.h"

namespace coppice::openai {
namespace {

// A token of a prompt is a row of a product with the weights, and so is a token that a full batch generates; one machine's steps
// hold as many rows either way. Reads of weights and KV, a cost of the latter, differ by machine and change no part's share much.
constexpr int64_t kCostOfPromptToken = 1, kCostOfOutputToken = 1;
constexpr double kTolerance = 1.05;  // of the longest part, for a cut that divides fewer tokens

int64_t SharedTokens(std::span<const int32_t> a, std::span<const int32_t> b) { return std::ranges::mismatch(a, b).in1 - a.begin(); }

// Costs of ranges of the requests. That of a range is at least that of each range within it: what a request shares with the one
// before it is a part of that one.
class RangeCosts {
 public:
  explicit RangeCosts(const SortedRequests& requests) : shared_(requests.count + 1, 0), sums_(requests.count + 1, 0) {
    for (size_t i = 0; i < requests.count; ++i) {
      const std::span<const int32_t> prompt = requests.prompt(i);
      if (i > 0) shared_[i] = SharedTokens(requests.prompt(i - 1), prompt);
      const int64_t own = std::ssize(prompt) - shared_[i];
      sums_[i + 1] = sums_[i] + own * kCostOfPromptToken + requests.output_tokens(i) * kCostOfOutputToken;
      longest_ = std::max(longest_, Of(i, i + 1));
    }
  }

  size_t count() const { return shared_.size() - 1; }
  // Tokens of request `i` that the one before it begins with.
  int64_t shared(size_t i) const { return shared_[i]; }
  int64_t Of(size_t begin, size_t end) const { return sums_[end] - sums_[begin] + shared_[begin] * kCostOfPromptToken; }
  int64_t longest() const { return longest_; }  // of one request
  // The end of the longest range from `begin` that costs `limit` at most.
  size_t Reach(size_t begin, int64_t limit) const {
    const int64_t most = limit + sums_[begin] - shared_[begin] * kCostOfPromptToken;
    return static_cast<size_t>(std::ranges::upper_bound(sums_, most) - sums_.begin()) - 1;
  }

 private:
  std::vector<int64_t> shared_, sums_;  // sums_[i]: of the requests before i, each beside the one before it
  int64_t longest_ = 0;
};

size_t PartsNeeded(const RangeCosts& costs, int64_t limit) {
  size_t parts = 0;
  for (size_t begin = 0; begin < costs.count(); begin = costs.Reach(begin, limit)) ++parts;
  return parts;
}

// The least cost of the longest of so many ranges.
int64_t LeastLimit(const RangeCosts& costs, size_t parts) {
  int64_t low = costs.longest(), high = costs.Of(0, costs.count());
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (PartsNeeded(costs, middle) <= parts) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Of ranges that cost `limit` at most, by their begin: how many there must be to the end.
std::vector<size_t> PartsNeededFrom(const RangeCosts& costs, int64_t limit) {
  std::vector<size_t> needed(costs.count() + 1, 0);
  for (size_t begin = costs.count(); begin-- > 0;) needed[begin] = 1 + needed[costs.Reach(begin, limit)];
  return needed;
}

// The end of the first of `parts` ranges from `begin`, none of which costs more than `limit`: where least is shared, then where the
// range costs about its part of what is left.
size_t ChooseEnd(const RangeCosts& costs, size_t begin, size_t parts, int64_t limit, const std::vector<size_t>& needed) {
  size_t end = costs.Reach(begin, limit);
  if (parts == 1 || end == costs.count()) return end;
  const int64_t even = costs.Of(begin, costs.count()) / static_cast<int64_t>(parts);
  const auto unevenness = [&](size_t at) { return std::abs(costs.Of(begin, at) - even); };
  for (size_t at = end - 1; at > begin && needed[at] < parts; --at) {
    const int64_t gain = costs.shared(end) - costs.shared(at);
    if (gain > 0 || (gain == 0 && unevenness(at) < unevenness(end))) end = at;
  }
  return end;
}

}  // namespace

std::vector<BatchPart> CutBatch(const SortedRequests& requests, size_t parts) {
  COPPICE_CHECK(parts > 0);
  std::vector<BatchPart> cut;
  if (requests.count == 0) return cut;
  const RangeCosts costs(requests);
  const auto limit = static_cast<int64_t>(std::llround(static_cast<double>(LeastLimit(costs, parts)) * kTolerance));
  const std::vector<size_t> needed = PartsNeededFrom(costs, limit);
  for (size_t begin = 0; begin < requests.count;) {
    BatchPart part = {.begin = begin, .end = ChooseEnd(costs, begin, parts - cut.size(), limit, needed)};
    for (size_t i = part.begin; i < part.end; ++i) part.output_tokens += requests.output_tokens(i);
    part.prompt_tokens = (costs.Of(part.begin, part.end) - part.output_tokens * kCostOfOutputToken) / kCostOfPromptToken;
    cut.push_back(part);
    begin = part.end;
  }
  return cut;
}

}  // namespace coppice::openai
