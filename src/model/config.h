// The shape of a model, as read from config.json or GGUF metadata, one struct for all families.
// Layer: model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/core/status.h"

namespace coppice {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3 };

// Rotary embedding of a whole head (half-split pairs). Inverse frequency i is theta^(-2 i / head_dim), changed by `scaling`, and
// divided by frequency_divisors[i] where those are given.
struct RopeConfig {
  float theta = 10000.0f;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;                    // linear, llama3
  float low_freq_factor = 1.0f;           // llama3
  float high_freq_factor = 4.0f;          // llama3
  int32_t original_max_position = 0;      // llama3
  std::vector<float> frequency_divisors;  // empty or [head_dim / 2]; how a GGUF file states llama3 scaling (scaling is then kNone)
};

struct ModelConfig {
  std::string architecture;  // "llama", "mistral", "qwen2", "qwen3"
  int32_t hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int32_t num_qo_heads = 0, num_kv_heads = 0, head_dim = 0;  // head_dim: even, at most kMaxHeadDim
  int32_t vocab_size = 0, max_position = 0;                  // max_position: context length in tokens
  float rms_norm_eps = 1e-5f;
  RopeConfig rope;
  bool tie_embeddings = false;  // the output projection is the embedding; there is no lm_head.weight
  bool qkv_bias = false;        // q_proj, k_proj and v_proj have biases; implied by attention_bias
  bool attention_bias = false;  // o_proj has one too
  bool mlp_bias = false;
  bool qk_norm = false;  // RMS norm over each head of q and k before the rotation (self_attn.q_norm, k_norm: [head_dim])
  int32_t window = 0;    // sliding window of every layer, 0 off (AttentionSpec::window)
  int32_t bos_token_id = -1;
  std::vector<int32_t> eos_token_ids;

  static constexpr int32_t kMaxHeadDim = 256;
};

// The rules between the numbers, whatever file they come from: heads in whole groups, head_dim even and at most kMaxHeadDim,
// positive RoPE constants. INVALID_ARGUMENT names `path` and both values.
Status CheckConfig(const ModelConfig& config, const std::string& path);

}  // namespace coppice
