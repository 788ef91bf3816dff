// Gemma 3, text: five local layers to a global one, each kind with a rotary base of its own; norms around each block that multiply
// by 1 + weight; a scaled embedding; GELU-gated MLP.
// Layer: model.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"
#include "model/families/family.h"
#include "model/object_reader.h"

namespace coppice {
namespace {

using enum WeightRole;

constexpr std::array<WeightName, 16> kGemma3Names = {{{kEmbedding, "model.embed_tokens"},
                                                      {kFinalNorm, "model.norm"},
                                                      {kLmHead, "lm_head"},
                                                      {kAttentionNorm, "model.layers.{}.input_layernorm"},
                                                      {kQ, "model.layers.{}.self_attn.q_proj"},
                                                      {kK, "model.layers.{}.self_attn.k_proj"},
                                                      {kV, "model.layers.{}.self_attn.v_proj"},
                                                      {kQNorm, "model.layers.{}.self_attn.q_norm"},
                                                      {kKNorm, "model.layers.{}.self_attn.k_norm"},
                                                      {kAttentionOutput, "model.layers.{}.self_attn.o_proj"},
                                                      {kPostAttentionNorm, "model.layers.{}.post_attention_layernorm"},
                                                      {kMlpNorm, "model.layers.{}.pre_feedforward_layernorm"},
                                                      {kGate, "model.layers.{}.mlp.gate_proj"},
                                                      {kUp, "model.layers.{}.mlp.up_proj"},
                                                      {kDown, "model.layers.{}.mlp.down_proj"},
                                                      {kPostMlpNorm, "model.layers.{}.post_feedforward_layernorm"}}};

constexpr int32_t kPattern = 6;  // every sixth layer is global

// The context length of Gemma 3's files is the one after linear scaling.
void SetOriginalLength(ModelConfig* config) {
  RopeConfig& rope = config->rope;
  if (rope.scaling != RopeScaling::kLinear || !(rope.factor > 1)) return;
  rope.original_max_position = std::max(1, static_cast<int32_t>(static_cast<float>(config->max_position) / rope.factor));
}

void ScaleEmbedding(ModelConfig* config) { config->embedding_scale = std::sqrt(static_cast<float>(config->hidden_size)); }

Status ReadScales(const ObjectReader& reader, ModelConfig* config) {
  ScaleEmbedding(config);
  SetOriginalLength(config);
  float query_scalar = 256;
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("query_pre_attn_scalar", &query_scalar));
  if (!(query_scalar > 0)) return reader.Wrong("query_pre_attn_scalar", "a positive number");
  config->sm_scale = 1 / std::sqrt(query_scalar);
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("attn_logit_softcapping", &config->soft_cap));
  COPPICE_RETURN_IF_ERROR(reader.OptionalBool("attention_bias", &config->blocks.attention_bias));
  config->blocks.qkv_bias = config->blocks.attention_bias;
  if (reader.Has("final_logit_softcapping")) return reader.Unsupported("final_logit_softcapping", "null");
  return reader.RequireFalse("use_bidirectional_attention");
}

// A GGUF file has 1 + weight in its norms, and leaves the pattern, the local base and the 27B's scale to the reader.
void CompleteGguf(ModelConfig* config) {
  ScaleEmbedding(config);
  SetOriginalLength(config);
  config->blocks.unit_offset_norms = false;
  constexpr int32_t kLayersOf27B = 62;
  if (config->num_layers == kLayersOf27B) {
    config->sm_scale = 1 / std::sqrt(static_cast<float>(config->hidden_size / config->num_qo_heads));
  }
  if (config->window == 0) return;
  config->local_window = config->window;
  config->window = 0;
  config->local_rope = {};  // base 10,000
  config->local_layers.clear();
  for (int32_t i = 0; i < config->num_layers; ++i) config->local_layers.push_back((i + 1) % kPattern != 0);
}

}  // namespace

const Family kGemma3 = {.name = "gemma3",
                        .hf_architecture = "Gemma3ForCausalLM",
                        .hf_model_type = "gemma3_text",
                        .multimodal = {.hf_architecture = "Gemma3ForConditionalGeneration", .hf_model_type = "gemma3"},
                        .gguf_architecture = "gemma3",
                        .blocks = {.unit_offset_norms = true,
                                   .activation = ops::Activation::kGeluTanh,
                                   .post_norms = true,
                                   .qk_norm = true,
                                   .exceeds_f16 = true},
                        .keys = {.activation = "hidden_activation"},
                        .defaults = {.vocab_size = 262208,
                                     .hidden_size = 2304,
                                     .intermediate_size = 9216,
                                     .num_layers = 26,
                                     .num_heads = 8,
                                     .num_kv_heads = 4,
                                     .head_dim = 256,
                                     .max_position = 131072,
                                     .activation = "gelu_pytorch_tanh",
                                     .tie_embeddings = true,
                                     .rope_theta = 1e6f,
                                     .sliding_window = 4096,
                                     .local_pattern = kPattern,
                                     .local_rope_theta = 1e4f},
                        .weights = kGemma3Names,
                        .read_config = ReadScales,
                        .complete_gguf = CompleteGguf};

}  // namespace coppice
