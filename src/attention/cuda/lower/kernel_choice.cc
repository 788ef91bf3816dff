// The choice of kernels. Layer: attention/cuda.
#include "attention/cuda/lower/kernel_choice.h"

#include <bit>
#include <string>

#include "attention/cuda/kernel_config.h"
#include "attention/cuda/lower/plan_image.h"
#include "attention/cuda/plan_device.h"
#include "core/check.h"

namespace coppice::attention::cuda {
namespace {

// UNIMPLEMENTED for a spec that is beyond all kernels of this backend.
Status CheckSpec(const AttentionSpec& spec) {
  if (spec.q_dtype != spec.kv_dtype || SizeOf(spec.q_dtype) != 2) {
    return Unimplemented("attention on CUDA: q is " + std::string(Name(spec.q_dtype)) + " and KV is " +
                         std::string(Name(spec.kv_dtype)) + "; expected both bf16 or both f16");
  }
  if (spec.head_dim % 8 != 0 || spec.head_dim < 8 || spec.head_dim > 256) {
    return Unimplemented("attention on CUDA: head_dim = " + std::to_string(spec.head_dim) + "; expected a multiple of 8 up to 256");
  }
  if (spec.num_kv_heads < 1 || spec.num_qo_heads % spec.num_kv_heads != 0 || spec.group_size() > kDenseRows) {
    return Unimplemented("attention on CUDA: " + std::to_string(spec.num_qo_heads) + " query heads over " +
                         std::to_string(spec.num_kv_heads) + " kv heads; expected at most " + std::to_string(kDenseRows) +
                         " query heads for each kv head");
  }
  if (spec.sm_scale < 0.0f) {
    return Unimplemented("attention on CUDA: sm_scale = " + std::to_string(spec.sm_scale) + "; expected a positive scale");
  }
  return OkStatus();
}

// The reason why the Hopper kernel cannot run this; empty if it can.
std::string WhyNotHopper(int major, int minor, const AttentionSpec& spec, int32_t page_size) {
  if (major != 9 || minor != 0) {
    return "compute capability " + std::to_string(major) + "." + std::to_string(minor) + "; it needs 9.0";
  }
  if (spec.head_dim > 128) return "head_dim = " + std::to_string(spec.head_dim) + "; it takes up to 128";
  const int least = spec.deterministic ? kBoxedPageSize : 1;
  if (page_size < least || page_size > 256 || !std::has_single_bit(static_cast<uint32_t>(page_size))) {
    return "page_size = " + std::to_string(page_size) + (spec.deterministic ? " in deterministic mode" : "") +
           "; it takes powers of two from " + std::to_string(least) + " to 256";
  }
  return "";
}

}  // namespace

Result<KernelChoice> ChooseKernel(CudaKernels kernels, int major, int minor, const AttentionSpec& spec, int32_t page_size) {
  COPPICE_RETURN_IF_ERROR(CheckSpec(spec));
  const std::string why_not_hopper = WhyNotHopper(major, minor, spec, page_size);
  if (kernels == CudaKernels::kHopper && !why_not_hopper.empty()) {
    return Unimplemented("attention on CUDA: the Hopper kernel cannot do " + why_not_hopper +
                         "; let the context choose its kernels");
  }
  const int head_dim = PaddedHeadDim(spec.head_dim);
  if (kernels != CudaKernels::kMmaSync && why_not_hopper.empty()) {
    const int kv_tile = spec.deterministic ? kHopperDeterministicUnit : HopperKvTile(head_dim);
    return KernelChoice{
        .path = KernelPath::kHopper, .head_dim = head_dim, .kv_tile = kv_tile, .gathers = page_size < kBoxedPageSize};
  }
  return KernelChoice{.path = KernelPath::kMmaSync, .head_dim = head_dim, .kv_tile = MmaSyncKvTile(head_dim)};
}

BackendTraits TraitsOf(const KernelChoice& kernel, const AttentionSpec& spec, int num_sms) {
  const bool hopper = kernel.path == KernelPath::kHopper, in_order = hopper && spec.deterministic;
  return {.workers = num_sms,
          .dense_tile_rows = kDenseRows,
          .dense_min_rows = StreamRows(spec.deterministic) + 1,
          .dense_row_unit = kWarpgroupRows,
          .stream_warps = kStreamWarpsPerSm,
          .cooperative_warps = hopper && !in_order ? kStreamWarpsPerSm : 0,
          .max_item_rows = 0,  // PlanTranslator cuts them
          .kv_tile = kernel.kv_tile,
          .native_head_dim = kernel.head_dim,
          .stream_cache_share = hopper ? HopperStreamRate(kernel.head_dim) : 1.0f,
          .dense_latency = in_order ? kDeterministicDenseLatency : 1.0f,
          .two_column_rows = in_order ? 1 : 0,
          .max_set_contributions = MaxPlannedContributions(spec),
          .deterministic_unit = DeterministicUnit(kernel.path),
          .cuts_kv = true};
}

}  // namespace coppice::attention::cuda
