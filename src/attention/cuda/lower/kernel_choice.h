// Which kernel serves a spec on a GPU, the tiles that plans are cut for there, and what the planner must know of it. Host code of
// every build; kernel_variants.h has the compiled kernels. Layer: attention/cuda.
#pragma once

#include <cstdint>

#include "attention/backend_traits.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

enum class KernelPath : uint8_t {
  kHopper,   // attention_kernel.cuh: wgmma and bulk tensor copies, sm_90a
  kMmaSync,  // sm80_kernel.cuh: mma.sync and cp.async, sm_80 and later
};

// Elements of a head of the kernels that serve such a spec.
constexpr int PaddedHeadDim(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }

// Tokens of a dense step (kernel_config.h and sm80_config.h say why).
constexpr int HopperKvTile(int head_dim) { return head_dim == 64 ? 192 : 128; }
constexpr int MmaSyncKvTile(int head_dim) { return 4096 / head_dim; }

// Its CTAs alone, not those of mma.sync, can read a task with all stream warps (cooperative_warps of its traits), compute
// on some SMs while others stream, and multiply eight rows of a stream tile at a time, so that one of more rows takes longer
// (stream_tile.cuh).
constexpr KernelPath PathOf(const BackendTraits& traits) {
  return traits.cooperative_warps > 0 ? KernelPath::kHopper : KernelPath::kMmaSync;
}

// Pages of fewer tokens are gathered (gather.cuh), by kernels of their own.
inline constexpr int kBoxedPageSize = 8;

// Whether plans of this spec may have overlapped tiles (overlapped_stream.cuh): Hopper's may, with head_dim 128; with 64, dense
// steps are too long for the registers that it leaves. Where pages are gathered, the warp that overlapped tiles would take brings
// half of the dense tiles' KV.
constexpr bool HasOverlappedTiles(KernelPath path, const AttentionSpec& spec, int32_t page_size) {
  return path == KernelPath::kHopper && !spec.deterministic && PaddedHeadDim(spec.head_dim) == 128 && page_size >= kBoxedPageSize;
}

// Kv indices of a unit in deterministic mode; on Hopper a dense step is one.
inline constexpr int kHopperDeterministicUnit = 128;
constexpr int DeterministicUnit(KernelPath path) {
  return path == KernelPath::kHopper ? kHopperDeterministicUnit : kDeterministicUnit;
}

struct KernelChoice {
  KernelPath path;
  int head_dim;  // after padding
  int kv_tile;
  bool gathers = false;  // Hopper's for pages of fewer than kBoxedPageSize tokens
};

// The kernel for `spec` over pages of this size on a device of compute capability major.minor: the Hopper kernel where it can,
// unless `kernels` says otherwise. UNIMPLEMENTED, with the reason, if nothing does.
Result<KernelChoice> ChooseKernel(CudaKernels kernels, int major, int minor, const AttentionSpec& spec, int32_t page_size);

// Of a GPU, or part of one, with so many SMs.
BackendTraits TraitsOf(const KernelChoice& kernel, const AttentionSpec& spec, int num_sms);

}  // namespace coppice::attention::cuda
