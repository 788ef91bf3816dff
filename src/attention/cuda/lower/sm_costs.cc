// Rates of a card applied to one spec. Layer: attention/cuda.
#include "attention/cuda/lower/sm_costs.h"

#include "attention/cuda/lower/cut_rules.h"

namespace coppice::attention::cuda {

SmCosts::SmCosts(const SmRates& rates, const AttentionSpec& spec, int32_t kv_tile)
    : rates_(rates),
      kv_tile_(kv_tile),
      stream_rows_(StreamRows(spec.deterministic)),
      bytes_per_token_(2 * spec.head_dim * static_cast<int32_t>(SizeOf(spec.kv_dtype))),
      dense_piece_unit_(RoundUp(kMinDensePiece, kv_tile)),
      memory_bytes_per_ns_(rates.memory_bytes_per_s / 1e9),
      bulk_bytes_per_ns_(rates.bulk_bytes_per_s / 1e9),
      dense_token_ns_(4.0 * kDenseRows * spec.head_dim / (rates.dense_flops_per_s / 1e9 / rates.num_sms)) {}

double SmCosts::StreamItemNs(int64_t rows, int64_t tokens) const {
  const double step_ns =
      std::max(rates_.stream_step_ns / kStreamWarpsPerSm, kStreamStepTokens * bytes_per_token_ / sm_memory_bytes_per_ns());
  return static_cast<double>(CeilDiv(rows, stream_rows_)) *
         (rates_.stream_price_ns / kStreamWarpsPerSm + static_cast<double>(CeilDiv(tokens, kStreamStepTokens)) * step_ns);
}

}  // namespace coppice::attention::cuda
