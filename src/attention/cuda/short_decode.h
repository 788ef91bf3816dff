// Decode steps with little KV and nothing to share, such as one chat: a kernel of its own. The persistent kernel takes each SM
// whole, so that neither its start lies beside the kernel before it nor its end beside the one after; here a CTA takes a sixth of
// an SM, and what it does before its input is there costs nothing. Docs and figures: docs/kernels/short_decode.md. Layer:
// attention/cuda.
#pragma once

#include <cstdint>

#include "attention/cuda/kernel_params.h"
#include "attention/work_list.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

inline constexpr int kShortThreads = 256;
inline constexpr int kShortCtas = 128;  // of a launch, whatever the plan: one an SM
// CTAs of a cluster, which divide the KV of a query under one kv head. The wide one has no more than a GPC has SMs.
inline constexpr int kShortCluster = 8, kShortWideCluster = 16;
inline constexpr int kShortMaxQueries = 32;
inline constexpr int kShortMaxGroup = 32;
// Tokens that a CTA reads, one query and kv head after the other: at 256 the persistent kernel takes no more.
inline constexpr int kShortMaxTokens = 256;
// From how many tokens on a wide cluster is faster, if each has one query and kv head at most: it begins and ends 0.4 to 0.9 us
// later.
inline constexpr int kShortWideTokens = 768;

struct ShortDecodeParams {
  KernelParams plan;
  const void *k, *v;
  int64_t page_stride, head_stride, slot_stride;  // elements
};

// The kernel of a spec, page size and cluster, or null where there is none, or the device has no place for the cluster.
const void* ShortDecodeKernel(const AttentionSpec& spec, int32_t page_size, int cluster);

// The cluster whose kernel computes this step: one query a branch, without tree mask, each branch alone with what it reads, and few
// tokens. 0: none does. `has_wide`: there is a kernel of wide clusters.
int ShortDecodeCluster(const AttentionSpec& spec, const PlanView& plan, const PrefixForestView& forest, bool has_wide);

}  // namespace coppice::attention::cuda
