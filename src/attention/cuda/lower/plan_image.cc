// The layout of a plan's image. Layer: attention/cuda.
#include "attention/cuda/lower/plan_image.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "attention/cuda/kernel_config.h"
#include "attention/cuda/plan_device.h"
#include "attention/plan_units.h"

namespace coppice::attention::cuda {
namespace {

// Most tasks by cutting: for them a plan has states of its own.
constexpr int64_t kTasksPerStreamWarp = 8, kDenseTasksPerSm = 4;

}  // namespace

uint32_t SpreadStep(int32_t n) {
  if (n < 2) return 0;
  int64_t places = std::lround(0.618 * n);  // the golden section, or next to it
  for (int64_t away = 1; std::gcd(places, n) > 1; away = away > 0 ? -away - 1 : -away + 1) places += away;
  return static_cast<uint32_t>(((places << 32) + n - 1) / n);
}

Status Exceeded(const char* what, int64_t have, int64_t most) {
  return ResourceExhausted("CUDA plan: " + std::to_string(have) + " " + what + "; the sizes given at creation allow " +
                           std::to_string(most) + "; create the plan with a larger capacity");
}

PlanLayout::PlanLayout(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int num_sms) {
  const int64_t most = int64_t{num_sms} * (kDenseTasksPerSm * kDenseRows + kTasksPerStreamWarp * kStreamWarpsPerSm * kStreamRows);
  own_states = spec.deterministic ? 0 : std::min(most, kMostPieces * capacity.max_queries * spec.num_qo_heads);
  max_states = sizes.max_states + own_states;
  max_contributions = sizes.max_contributions + own_states / spec.num_kv_heads;  // each has a row or more
  max_members = max_contributions;                                               // a member is a contribution seen from its item
  max_items = sizes.max_items + max_contributions;                               // a block of rows begins at a member
  max_tasks = max_items * spec.num_kv_heads;
  size_t used = 0;
  const auto reserve = [&](size_t& offset, int64_t count, size_t each) {
    offset = used;
    used = RoundUp(used + static_cast<size_t>(count) * each, 256);
  };
  reserve(header, 1, sizeof(PlanHeader));
  reserve(branches, capacity.max_branches, sizeof(DeviceBranch));
  reserve(dense_tasks, max_tasks, sizeof(Task));
  reserve(stream_tasks, max_tasks, sizeof(Task));
  reserve(members, max_members, sizeof(DeviceMember));
  reserve(contributions, max_contributions, sizeof(DeviceContribution));
  reserve(tree_mask, capacity.max_queries, sizeof(uint64_t));
  reserve(page_indices, capacity.max_page_slots, sizeof(int32_t));
  // A launch asks for its first lines of some arrays before it knows how much they hold (PrefetchFirst), at most a task for each
  // stream warp past an array's beginning: they lie in this memory too.
  bytes = used + static_cast<size_t>(num_sms) * kStreamWarpsPerSm * sizeof(Task);
}

}  // namespace coppice::attention::cuda
