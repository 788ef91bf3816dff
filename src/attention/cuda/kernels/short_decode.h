// The kernel of short decode steps (lower/short_steps.h has the rule). The persistent kernel takes each SM whole, so that neither
// its start lies beside the kernel before it nor its end beside the one after; here a CTA takes a sixth of an SM, and what it does
// before its input is there costs nothing. Docs and figures: docs/kernels/short_decode.md. Layer: attention/cuda.
#pragma once

#include <cstdint>
#include <string>

#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernels/kernel.h"
#include "attention/cuda/lower/short_steps.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

// The compiled kernels of a spec and page size by their cluster; null where there is none, or the device has no place for it.
struct ShortDecodeFunctions {
  const void *narrow = nullptr, *wide = nullptr;
};
// For plans of this capacity: with one device image a captured launch serves every step, which these kernels do not.
ShortDecodeFunctions ShortDecodeFunctionsOf(KernelPath path, const AttentionSpec& spec, const PlanCapacity& capacity, int num_sms);
// Traits that say so.
BackendTraits WithShortSteps(BackendTraits traits, const ShortDecodeFunctions& functions);

class ShortDecodeKernel final : public Kernel {
 public:
  ShortDecodeKernel(const ShortDecodeFunctions& functions, const ShortDecodeRates& rates) : functions_(functions), rates_(rates) {}
  Status Launch(const LaunchChoice& choice, const KernelParams& params, const BoundCudaKv& kv, cudaStream_t stream) const override;
  std::string Explain(const LaunchChoice& choice, const LoweredView& lowered) const override;
  std::string Dump(const LaunchChoice& choice, const LoweredView& lowered) const override;
  void Count(const LaunchChoice& choice, const LoweredView& lowered, PlanStats* stats) const override;

 private:
  ShortDecodeFunctions functions_;
  ShortDecodeRates rates_;
};

}  // namespace coppice::attention::cuda
