#include "model/config.h"

#include <fmt/format.h>

namespace coppice {

Status CheckConfig(const ModelConfig& config, const std::string& path) {
  if (config.num_qo_heads % config.num_kv_heads != 0) {
    return InvalidArgument(
        fmt::format("{}: {} query heads are not a multiple of {} key/value heads", path, config.num_qo_heads, config.num_kv_heads));
  }
  if (config.head_dim < 2 || config.head_dim % 2 != 0 || config.head_dim > ModelConfig::kMaxHeadDim) {
    return InvalidArgument(fmt::format("{}: head dimension {} is not supported, expected an even number up to {}", path,
                                       config.head_dim, ModelConfig::kMaxHeadDim));
  }
  if (!(config.rms_norm_eps > 0)) {
    return InvalidArgument(fmt::format("{}: RMS norm epsilon {} must be positive", path, config.rms_norm_eps));
  }
  const RopeConfig& rope = config.rope;
  if (!(rope.theta > 0)) return InvalidArgument(fmt::format("{}: RoPE base {} must be positive", path, rope.theta));
  if (!(rope.factor > 0)) return InvalidArgument(fmt::format("{}: RoPE scaling factor {} must be positive", path, rope.factor));
  if (rope.scaling == RopeScaling::kLlama3) {
    if (!(rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor)) {
      return InvalidArgument(fmt::format("{}: llama3 RoPE needs 0 < low_freq_factor < high_freq_factor, found {} and {}", path,
                                         rope.low_freq_factor, rope.high_freq_factor));
    }
    if (rope.original_max_position < 1) {
      return InvalidArgument(fmt::format("{}: llama3 RoPE needs original_max_position_embeddings of at least 1, found {}", path,
                                         rope.original_max_position));
    }
  }
  for (size_t i = 0; i < rope.frequency_divisors.size(); ++i) {
    if (!(rope.frequency_divisors[i] > 0)) {
      return InvalidArgument(
          fmt::format("{}: RoPE frequency divisor {} is {}, expected a positive number", path, i, rope.frequency_divisors[i]));
    }
  }
  return OkStatus();
}

}  // namespace coppice
