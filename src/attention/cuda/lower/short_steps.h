// Decode steps with little KV and nothing to share, such as one chat, have a kernel of their own (docs/kernels/short_decode.md):
// which steps those are and what they take. Host code of every build. Layer: attention/cuda.
#pragma once

#include <cstdint>

#include "attention/backend_traits.h"
#include "attention/machine_model.h"
#include "attention/work_list.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

inline constexpr int kShortCtas = 128;  // of a launch, whatever the plan: one an SM
// CTAs of a cluster, which divide the KV of a query under one kv head. The wide one has no more than a GPC has SMs.
inline constexpr int kShortCluster = 8, kShortWideCluster = 16;
inline constexpr int kShortMaxQueries = 32;
// Tokens that a CTA reads, one query and kv head after the other: at 256 the persistent kernel takes no more.
inline constexpr int kShortMaxTokens = 256;
// From how many tokens on a wide cluster is faster, if each has one query and kv head at most: it begins and ends 0.4 to 0.9 us
// later.
inline constexpr int kShortWideTokens = 768;

// A launch of that kernel.
struct ShortLaunch {
  int cluster = 0;         // CTAs; 0: the kernel does not serve the step
  int64_t cta_tokens = 0;  // that a CTA reads at most

  explicit operator bool() const { return cluster > 0; }
};

// Of a step of so many queries, one a branch, each alone with what it reads; `longest`: tokens of a query at most.
ShortLaunch ShortLaunchOf(const BackendTraits& traits, const AttentionSpec& spec, int32_t queries, int32_t longest);
// Of a plan at the lengths of a step.
ShortLaunch ShortLaunchOf(const BackendTraits& traits, const PlanView& plan, const PrefixForestView& forest);

// REQUIRES: the machine's rates of the kernel are known.
double ShortStepNs(const ShortDecodeRates& rates, const AttentionSpec& spec, const ShortLaunch& launch);

}  // namespace coppice::attention::cuda
