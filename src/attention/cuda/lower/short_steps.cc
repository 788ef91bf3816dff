// The rule of short steps and their price. Layer: attention/cuda.
#include "attention/cuda/lower/short_steps.h"

#include <algorithm>

#include "core/math.h"

namespace coppice::attention::cuda {

ShortLaunch ShortLaunchOf(const BackendTraits& traits, const AttentionSpec& spec, int32_t queries, int32_t longest) {
  if (queries == 0 || queries > traits.short_step_queries) return {};
  const int32_t tasks = queries * spec.num_kv_heads;
  const bool is_wide = traits.has_wide_short_steps && tasks <= kShortCtas / kShortWideCluster && longest > kShortWideTokens;
  const int32_t cluster = is_wide ? kShortWideCluster : kShortCluster;
  const int64_t cta_tokens = int64_t{CeilDiv(tasks, kShortCtas / cluster)} * CeilDiv(longest, cluster);
  if (cta_tokens > kShortMaxTokens) return {};
  return {.cluster = cluster, .cta_tokens = cta_tokens};
}

ShortLaunch ShortLaunchOf(const BackendTraits& traits, const PlanView& plan, const PrefixForestView& forest) {
  if (traits.short_step_queries == 0 || !forest.query_tree_mask.empty()) return {};
  const int32_t window = plan.spec.window;
  int32_t queries = 0, longest = 0;
  for (size_t b = 0; b < forest.branch_kv_len.size(); ++b) {
    const int32_t count = forest.branch_query_count[b];
    if (count == 0 || forest.branch_node[b] == kFreeSlot) continue;
    if (count > 1 || ++queries > traits.short_step_queries) return {};
    longest = std::max(longest, window > 0 ? std::min(forest.branch_kv_len[b], window) : forest.branch_kv_len[b]);
  }
  if (std::ranges::any_of(plan.items, [](const WorkItem& item) { return item.member_count > 1; })) return {};
  return ShortLaunchOf(traits, plan.spec, queries, longest);
}

double ShortStepNs(const ShortDecodeRates& rates, const AttentionSpec& spec, const ShortLaunch& launch) {
  const double elements = spec.head_dim, bytes = 2.0 * spec.head_dim * static_cast<double>(SizeOf(spec.kv_dtype));
  const double token_ns = spec.group_size() * elements * rates.element_ns + bytes * rates.byte_ns;
  return (launch.cluster == kShortWideCluster ? rates.wide_launch_ns : rates.launch_ns) +
         static_cast<double>(launch.cta_tokens) * token_ns;
}

}  // namespace coppice::attention::cuda
