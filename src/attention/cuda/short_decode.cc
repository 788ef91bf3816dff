#include "attention/cuda/short_decode.h"

#include <algorithm>
#include <bit>

#include "attention/cuda/short_decode_kernels.h"
#include "core/math.h"

namespace coppice::attention::cuda {

const void* ShortDecodeKernel(const AttentionSpec& spec, int32_t page_size, int cluster) {
  const bool is_served = !spec.deterministic && spec.q_dtype == spec.kv_dtype && spec.group_size() <= kShortMaxGroup &&
                         std::has_single_bit(static_cast<uint32_t>(page_size));
  if (!is_served) return nullptr;
  switch (spec.q_dtype) {
    case DType::kBF16: return ShortDecodeKernelBf16(spec.head_dim, spec.group_size(), cluster);
    case DType::kF16: return ShortDecodeKernelF16(spec.head_dim, spec.group_size(), cluster);
    case DType::kF32: return nullptr;
  }
  return nullptr;
}

int ShortDecodeCluster(const AttentionSpec& spec, const PlanView& plan, const PrefixForestView& forest, bool has_wide) {
  if (!forest.query_tree_mask.empty()) return 0;
  int32_t queries = 0, longest = 0;
  for (size_t b = 0; b < forest.branch_kv_len.size(); ++b) {
    const int32_t count = forest.branch_query_count[b];
    if (count == 0 || forest.branch_node[b] == kFreeSlot) continue;
    if (count > 1 || ++queries > kShortMaxQueries) return 0;
    longest = std::max(longest, spec.window > 0 ? std::min(forest.branch_kv_len[b], spec.window) : forest.branch_kv_len[b]);
  }
  if (queries == 0 || std::ranges::any_of(plan.items, [](const WorkItem& item) { return item.member_count > 1; })) return 0;
  const int32_t tasks = queries * spec.num_kv_heads;
  const bool is_wide = has_wide && tasks <= kShortCtas / kShortWideCluster && longest > kShortWideTokens;
  const int32_t cluster = is_wide ? kShortWideCluster : kShortCluster;
  const int32_t rounds = CeilDiv(tasks, kShortCtas / cluster);
  return int64_t{rounds} * CeilDiv(longest, cluster) <= kShortMaxTokens ? cluster : 0;
}

}  // namespace coppice::attention::cuda
