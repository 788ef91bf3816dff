// The shape of a model, as read from config.json or GGUF metadata, one struct for all families.
// Layer: model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/core/status.h"
#include "ops/ops.h"

namespace coppice {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kDynamic };

// Rotary embedding of the first `rotary_dim` elements of a head. Inverse frequency i is theta^(-2 i / rotary_dim), changed by
// `scaling`, and divided by frequency_divisors[i] where those are given. Cosines and sines are multiplied by attention_factor.
struct RopeConfig {
  float theta = 10000.0f;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;                  // linear, llama3, yarn, dynamic
  float low_freq_factor = 1.0f;         // llama3
  float high_freq_factor = 4.0f;        // llama3
  int32_t original_max_position = 0;    // tokens of context before scaling, of every kind and of longrope; 0: not stated
  float beta_fast = 32, beta_slow = 1;  // yarn: turns in the original context above which a frequency is kept, below which divided
  bool truncate = true;                 // yarn: the range between the two begins and ends at whole dimensions
  float attention_factor = 1.0f;        // yarn, longrope
  std::vector<float> frequency_divisors;  // empty or [rotary_dim / 2]: GGUF's llama3 scaling, longrope's short factors
  // longrope: the divisors instead, where the context may exceed original_max_position. Empty or [rotary_dim / 2].
  std::vector<float> long_divisors;
};

// How the rows of q, k and v lie in a fused projection.
enum class QkvLayout : uint8_t {
  kSeparate,     // three tensors
  kFused,        // all of q, all of k, all of v
  kPerHead,      // q, k and v of each head
  kQuartersQvk,  // four parts, each a quarter of q, of v and of k: CodeGen's, made for four devices
};

// The parts of a family's layers.
struct Blocks {
  ops::NormKind norm = ops::NormKind::kRms;
  bool unit_offset_norms = false;  // norms multiply by 1 + weight
  ops::Activation activation = ops::Activation::kSilu;
  bool gated_mlp = true;           // act(gate) * up; else act(up)
  bool parallel = false;           // attention and MLP read one norm and are both added to the residual stream
  bool post_norms = false;         // what attention and MLP give is normalised before it is added
  bool learned_positions = false;  // a table of max_position rows is added to the embedding
  bool rotary = true;
  ops::RopePairs rope_pairs = ops::RopePairs::kHalves;
  QkvLayout qkv = QkvLayout::kSeparate;
  bool qkv_bias = false;        // q, k and v have biases
  bool attention_bias = false;  // the attention's output projection has one too
  bool mlp_bias = false;
  bool lm_head_bias = false;
  bool qk_norm = false;      // a norm over each head of q and k before the rotation
  bool exceeds_f16 = false;  // activations of trained models go beyond 65,504, where f16 ends
  // Products of its layers may bring their inputs to 8 bits where weights are blocks (ops::BlocksFormat::coarse_input): a model of
  // the family was measured to stay within the bound of docs/numerics.md, "Weights".
  bool coarse_inputs = false;
};

struct ModelConfig {
  std::string architecture;  // the name of its family: "llama", "gemma3"
  Blocks blocks;
  int32_t hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int32_t num_qo_heads = 0, num_kv_heads = 0, head_dim = 0;  // head_dim: even, at most kMaxHeadDim
  int32_t rotary_dim = 0;                                    // even, at most head_dim; 0: all of it
  int32_t vocab_size = 0, max_position = 0;                  // max_position: context length in tokens, unless more is asked for
  float norm_eps = 1e-5f;
  float sm_scale = 0;           // multiplies q . k; 0: 1 / sqrt(head_dim)
  float soft_cap = 0;           // of attention scores (AttentionSpec::soft_cap); 0 off
  float embedding_scale = 1;    // multiplies the embedding
  bool tie_embeddings = false;  // the output projection is the embedding; there is no lm_head.weight
  // Attention of all layers but the local ones. window: a sliding window, 0 off (AttentionSpec::window).
  RopeConfig rope;
  int32_t window = 0;
  // Layers that attend otherwise (Gemma's local layers): which, or none if empty; their window and rotary embedding.
  std::vector<bool> local_layers;
  RopeConfig local_rope;
  int32_t local_window = 0;
  int32_t bos_token_id = -1;
  std::vector<int32_t> eos_token_ids;

  static constexpr int32_t kMaxHeadDim = ops::kMaxHeadDim;
  // The longest context that may be asked for: linear, yarn and dynamic scaling are made for `factor` times the original length,
  // which may exceed max_position. REQUIRES: CheckConfig passed.
  int32_t longest_context() const;
  int32_t rotated() const { return !blocks.rotary ? 0 : rotary_dim == 0 ? head_dim : rotary_dim; }
};

// The rules between the numbers, whatever file they come from: heads in whole groups, head_dim and rotary_dim even,
// head_dim at most kMaxHeadDim, positive RoPE constants. INVALID_ARGUMENT names `path` and both values.
Status CheckConfig(const ModelConfig& config, const std::string& path);

}  // namespace coppice
