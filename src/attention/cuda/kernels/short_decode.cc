// Launches of the kernel of short decode steps. Layer: attention/cuda.
#include "attention/cuda/kernels/short_decode.h"

#include <bit>

#include "attention/cuda/device_memory.h"
#include "attention/cuda/kernels/short_decode_params.h"
#include "attention/cuda/short_decode_kernels.h"

namespace coppice::attention::cuda {
namespace {

const void* FunctionOf(const AttentionSpec& spec, int cluster) {
  switch (spec.q_dtype) {
    case DType::kBF16: return ShortDecodeKernelBf16(spec.head_dim, spec.group_size(), cluster);
    case DType::kF16: return ShortDecodeKernelF16(spec.head_dim, spec.group_size(), cluster);
    case DType::kF32: return nullptr;
  }
  return nullptr;
}

}  // namespace

ShortDecodeFunctions ShortDecodeFunctionsOf(KernelPath path, const AttentionSpec& spec, const PlanCapacity& capacity, int num_sms) {
  const bool is_served = path == KernelPath::kHopper && capacity.device_images == 2 && num_sms >= kShortCtas &&
                         !spec.deterministic && spec.q_dtype == spec.kv_dtype && spec.group_size() <= kShortMaxGroup &&
                         std::has_single_bit(static_cast<uint32_t>(capacity.page_size));
  if (!is_served) return {};
  return {.narrow = FunctionOf(spec, kShortCluster), .wide = FunctionOf(spec, kShortWideCluster)};
}

BackendTraits WithShortSteps(BackendTraits traits, const ShortDecodeFunctions& functions) {
  traits.short_step_queries = functions.narrow != nullptr ? kShortMaxQueries : 0;
  traits.has_wide_short_steps = functions.wide != nullptr;
  return traits;
}

Status ShortDecodeKernel::Launch(const LaunchChoice& choice, const KernelParams& params, const BoundCudaKv& kv,
                                 cudaStream_t stream) const {
  const KvLayerView& view = kv.view();
  const int cluster = choice.short_launch.cluster;
  ShortDecodeParams all{.plan = params,
                        .k = view.k,
                        .v = view.v,
                        .page_stride = view.page_stride,
                        .head_stride = view.head_stride,
                        .slot_stride = view.slot_stride};
  void* arguments[] = {&all};
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;  // as the persistent kernel
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kShortCtas);
  config.blockDim = dim3(kShortThreads);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return CudaStatus(cudaLaunchKernelExC(&config, cluster == kShortWideCluster ? functions_.wide : functions_.narrow, arguments),
                    "launching the attention kernel of short decode steps");
}

std::string ShortDecodeKernel::Explain(const LaunchChoice& choice, const LoweredView&) const {
  const int cluster = choice.short_launch.cluster;
  return "runs by the kernel of short decode steps: " + std::to_string(kShortCtas / cluster) + " clusters of " +
         std::to_string(cluster) + " CTAs, each one query under one kv head at a time\n";
}

std::string ShortDecodeKernel::Dump(const LaunchChoice& choice, const LoweredView& lowered) const {
  return "{\"sms\":" + std::to_string(lowered.translator.num_sms()) +
         ",\"short_decode_cluster\":" + std::to_string(choice.short_launch.cluster) + "}";
}

// The kernel reads lengths and page rows alone; what its clusters fold stays on chip.
void ShortDecodeKernel::Count(const LaunchChoice& choice, const LoweredView& lowered, PlanStats* stats) const {
  CountCuts(lowered, stats);
  stats->num_contributions = 0;
  stats->state_bytes = 0;
  if (rates_.known()) stats->predicted_ns = ShortStepNs(rates_, lowered.translator.spec(), choice.short_launch);
}

}  // namespace coppice::attention::cuda
