// The shape of a model, as read from config.json or GGUF metadata, one struct for all families.
// Layer: model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coppice {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3 };

struct RopeConfig {
  float theta = 10000.0f;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;            // linear, llama3
  float low_freq_factor = 1.0f;   // llama3
  float high_freq_factor = 4.0f;  // llama3
  int32_t original_max_position = 0;  // llama3
};

struct ModelConfig {
  std::string architecture;  // "llama"
  int32_t hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int32_t num_qo_heads = 0, num_kv_heads = 0, head_dim = 0;
  int32_t vocab_size = 0, max_position = 0;  // max_position: context length in tokens
  float rms_norm_eps = 1e-5f;
  RopeConfig rope;
  bool tie_embeddings = false;
  bool attention_bias = false, mlp_bias = false;
  int32_t window = 0;  // sliding window, 0 off (AttentionSpec::window)
  int32_t bos_token_id = -1;
  std::vector<int32_t> eos_token_ids;
};

}  // namespace coppice
