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
inline constexpr int kShortCluster = 8;    // CTAs that divide the KV of a query under one kv head
inline constexpr int kShortClusters = 16;  // of a launch, whatever the plan: one CTA an SM
inline constexpr int kShortMaxQueries = 32;
inline constexpr int kShortMaxGroup = 32;
// Tokens that a cluster reads, one query and kv head after the other: at 2,048 a CTA has 256 and takes about 9 us, the persistent
// kernel 14.
inline constexpr int kShortMaxTokens = 2048;

struct ShortDecodeParams {
  KernelParams plan;
  const void *k, *v;
  int64_t page_stride, head_stride, slot_stride;  // elements
};

// The kernel of a spec and page size, or null where there is none.
const void* ShortDecodeKernel(const AttentionSpec& spec, int32_t page_size);

// Whether it computes this step: one query a branch, without tree mask, each branch alone with what it reads, and few tokens.
bool IsShortDecode(const AttentionSpec& spec, const PlanView& plan, const PrefixForestView& forest);

}  // namespace coppice::attention::cuda
