#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace coppice {

namespace {

Status CheckRope(const RopeConfig& rope, int32_t rotated, const std::string& path) {
  if (!(rope.theta > 0)) return InvalidArgument(fmt::format("{}: RoPE base {} must be positive", path, rope.theta));
  if (!(rope.factor > 0)) return InvalidArgument(fmt::format("{}: RoPE scaling factor {} must be positive", path, rope.factor));
  if (!(rope.attention_factor > 0)) {
    return InvalidArgument(fmt::format("{}: RoPE attention factor {} must be positive", path, rope.attention_factor));
  }
  if (rope.scaling == RopeScaling::kLlama3 && !(rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor)) {
    return InvalidArgument(fmt::format("{}: llama3 RoPE needs 0 < low_freq_factor < high_freq_factor, found {} and {}", path,
                                       rope.low_freq_factor, rope.high_freq_factor));
  }
  if (rope.scaling == RopeScaling::kYarn && !(rope.beta_slow > 0 && rope.beta_fast > rope.beta_slow)) {
    return InvalidArgument(
        fmt::format("{}: yarn RoPE needs 0 < beta_slow < beta_fast, found {} and {}", path, rope.beta_slow, rope.beta_fast));
  }
  const bool needs_original =
      rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn || !rope.long_divisors.empty();
  if (needs_original && rope.original_max_position < 1) {
    return InvalidArgument(fmt::format("{}: scaled RoPE needs original_max_position_embeddings of at least 1, found {}", path,
                                       rope.original_max_position));
  }
  for (const std::vector<float>* divisors : {&rope.frequency_divisors, &rope.long_divisors}) {
    if (!divisors->empty() && divisors->size() != static_cast<size_t>(rotated / 2)) {
      return InvalidArgument(fmt::format("{}: {} RoPE frequency divisors, expected {} (half the rotated elements of a head)", path,
                                         divisors->size(), rotated / 2));
    }
    for (size_t i = 0; i < divisors->size(); ++i) {
      if (!((*divisors)[i] > 0)) {
        return InvalidArgument(
            fmt::format("{}: RoPE frequency divisor {} is {}, expected a positive number", path, i, (*divisors)[i]));
      }
    }
  }
  return OkStatus();
}

}  // namespace

int32_t ModelConfig::longest_context() const {
  if (rope.scaling != RopeScaling::kLinear && rope.scaling != RopeScaling::kYarn && rope.scaling != RopeScaling::kDynamic)
    return max_position;
  const int32_t original = rope.original_max_position > 0 ? rope.original_max_position : max_position;
  const double scaled = std::round(double{rope.factor} * original);  // the factor is a float: 2.3 of 10,000 would be 22,999
  return std::max(max_position, static_cast<int32_t>(std::min(scaled, double{INT32_MAX})));
}

Status CheckConfig(const ModelConfig& config, const std::string& path) {
  if (config.num_qo_heads % config.num_kv_heads != 0) {
    return InvalidArgument(
        fmt::format("{}: {} query heads are not a multiple of {} key/value heads", path, config.num_qo_heads, config.num_kv_heads));
  }
  if (config.head_dim < 2 || config.head_dim % 2 != 0 || config.head_dim > ModelConfig::kMaxHeadDim) {
    return InvalidArgument(fmt::format("{}: head dimension {} is not supported, expected an even number up to {}", path,
                                       config.head_dim, ModelConfig::kMaxHeadDim));
  }
  if (config.rotary_dim < 0 || config.rotary_dim % 2 != 0 || config.rotary_dim > config.head_dim) {
    return InvalidArgument(fmt::format("{}: {} rotated elements of a head, expected an even number up to its dimension {}", path,
                                       config.rotary_dim, config.head_dim));
  }
  if (!(config.norm_eps > 0)) {
    return InvalidArgument(fmt::format("{}: norm epsilon {} must be positive", path, config.norm_eps));
  }
  if (!(config.sm_scale >= 0) || !(config.soft_cap >= 0) || !(config.embedding_scale > 0)) {
    return InvalidArgument(fmt::format("{}: attention scale {}, soft cap {} and embedding scale {} must not be negative", path,
                                       config.sm_scale, config.soft_cap, config.embedding_scale));
  }
  if (config.blocks.qkv == QkvLayout::kQuartersQvk && config.num_qo_heads % 4 != 0) {
    return InvalidArgument(fmt::format("{}: {} heads in four parts, expected a multiple of 4", path, config.num_qo_heads));
  }
  COPPICE_RETURN_IF_ERROR(CheckRope(config.rope, config.rotated(), path));
  return config.local_layers.empty() ? OkStatus() : CheckRope(config.local_rope, config.rotated(), path);
}

}  // namespace coppice
