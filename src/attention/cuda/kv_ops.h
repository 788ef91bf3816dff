// Writes into the KV pool and the public merge of attention states, on the device. Layer: attention/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

// See Context. Spans may be in host memory (copied on the stream) or in device memory (read in place, not range-checked).
Status AppendKv(const AttentionSpec& spec, const KvLayerView& kv, const AppendArgs& args, cudaStream_t stream);
Status CopyPages(const AttentionSpec& spec, const KvLayerView& kv, std::span<const PageCopy> copies, cudaStream_t stream);
Status MoveSlots(const AttentionSpec& spec, const KvLayerView& kv, std::span<const SlotMove> moves, cudaStream_t stream);
Status MergeStates(const StateView& into, std::span<const StateView> from, int64_t num_rows, int32_t num_heads, int32_t head_dim,
                   DType dtype, std::span<const uint8_t> mask, cudaStream_t stream);

}  // namespace coppice::attention::cuda
