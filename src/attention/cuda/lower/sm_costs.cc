// Rates of a card applied to one spec. Layer: attention/cuda.
#include "attention/cuda/lower/sm_costs.h"

#include "attention/cuda/lower/cut_rules.h"
#include "attention/cuda/lower/kernel_choice.h"

namespace coppice::attention::cuda {

// Rates of dense tiles and stream steps are those of head_dim 128.
SmCosts::SmCosts(const SmRates& rates, const AttentionSpec& spec, const BackendTraits& traits)
    : rates_(rates),
      path_(PathOf(traits)),
      stream_rows_(StreamRows(spec.deterministic)),
      bytes_per_token_(2 * spec.head_dim * static_cast<int32_t>(SizeOf(spec.kv_dtype))),
      dense_piece_unit_(RoundUp(kMinDensePiece, traits.kv_tile)),
      memory_bytes_per_ns_(rates.memory_bytes_per_s / 1e9),
      bulk_bytes_per_ns_(rates.bulk_bytes_per_s / 1e9),
      stream_step_ns_(rates.stream_step_ns) {
  const int head_dim = PaddedHeadDim(spec.head_dim);
  double flops_per_ns = rates.dense_flops_per_s / 1e9 / rates.num_sms;  // of an SM
  if (path_ == KernelPath::kHopper) {
    flops_per_ns *= HopperDenseRate(head_dim);
    stream_step_ns_ *= head_dim / (128 * HopperStreamRate(head_dim));
  }
  dense_token_ns_ = 4.0 * kDenseRows * head_dim / flops_per_ns;
}

double SmCosts::StreamItemNs(int64_t rows, int64_t tokens) const {
  const double step_ns =
      std::max(stream_step_ns_ / kStreamWarpsPerSm, kStreamStepTokens * bytes_per_token_ / sm_memory_bytes_per_ns());
  return static_cast<double>(CeilDiv(rows, stream_rows_)) *
         (rates_.stream_price_ns / kStreamWarpsPerSm + static_cast<double>(CeilDiv(tokens, kStreamStepTokens)) * step_ns);
}

}  // namespace coppice::attention::cuda
