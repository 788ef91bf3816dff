// The layout of a plan's image. Layer: attention/cuda.
#include "attention/cuda/lower/plan_image.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/cuda/kernel_config.h"
#include "attention/cuda/lower/cut_rules.h"
#include "attention/cuda/plan_device.h"
#include "attention/plan_units.h"

namespace coppice::attention::cuda {

uint32_t SpreadStep(int32_t n) {
  if (n < 2) return 0;
  int64_t places = std::lround(0.618 * n);  // the golden section, or next to it
  for (int64_t away = 1; std::gcd(places, n) > 1; away = away > 0 ? -away - 1 : -away + 1) places += away;
  return static_cast<uint32_t>(((places << 32) + n - 1) / n);
}

PlanLayout::PlanLayout(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int num_sms) {
  const int64_t most = int64_t{num_sms} * (kDenseTasksPerSm * kDenseRows + kTasksPerStreamWarp * kStreamWarpsPerSm * kStreamRows);
  own_states = spec.deterministic ? 0 : std::min(most, kMostPieces * capacity.max_queries * spec.num_qo_heads);
  max_states = sizes.max_states + own_states;
  const int64_t most_contributions = sizes.max_contributions + own_states / spec.num_kv_heads;
  max_contributions = RoundUp(int64_t{sizes.max_contributions}, kPlacesUnit) + most_contributions;
  max_members = RoundUp(int64_t{sizes.max_members}, kPlacesUnit) + most_contributions;
  max_items = sizes.max_items + most_contributions;
  max_tasks = max_items * spec.num_kv_heads;
  size_t used = 0;
  const auto reserve = [&](size_t& offset, int64_t count, size_t each) {
    offset = used;
    used = RoundUp(used + static_cast<size_t>(count) * each, size_t{256});
  };
  reserve(header, 1, sizeof(PlanHeader));
  reserve(branches, capacity.max_branches, sizeof(DeviceBranch));
  reserve(tree_mask, capacity.max_queries, sizeof(uint64_t));
  reserve(dense_tasks, max_tasks, sizeof(Task));
  reserve(stream_tasks, max_tasks, sizeof(Task));
  reserve(members, max_members, sizeof(DeviceMember));
  reserve(contributions, max_contributions, sizeof(DeviceContribution));
  reserve(page_indices, capacity.max_page_slots, sizeof(int32_t));
  // A launch asks for its first lines of some arrays before it knows how much they hold (PrefetchFirst), at most a task for each
  // stream warp past an array's beginning: they lie in this memory too.
  bytes = used + static_cast<size_t>(num_sms) * kStreamWarpsPerSm * sizeof(Task);
}

}  // namespace coppice::attention::cuda
