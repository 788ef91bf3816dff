// Phi-1, Phi-1.5 and Phi-2: layer norms, attention and MLP side by side, half of each head rotated, biases everywhere.
// Layer: model.
#include <array>

#include "core/check.h"
#include "model/families/family.h"
#include "model/object_reader.h"

namespace coppice {
namespace {

using enum WeightRole;

constexpr std::array<WeightName, 13> kPhiNames = {{{kEmbedding, "model.embed_tokens"},
                                                   {kFinalNorm, "model.final_layernorm"},
                                                   {kLmHead, "lm_head"},
                                                   {kAttentionNorm, "model.layers.{}.input_layernorm"},
                                                   {kQ, "model.layers.{}.self_attn.q_proj"},
                                                   {kK, "model.layers.{}.self_attn.k_proj"},
                                                   {kV, "model.layers.{}.self_attn.v_proj"},
                                                   {kQkv, "model.layers.{}.self_attn.qkv_proj"},  // GGUF files have one of the two
                                                   {kQNorm, "model.layers.{}.self_attn.q_layernorm"},
                                                   {kKNorm, "model.layers.{}.self_attn.k_layernorm"},
                                                   {kAttentionOutput, "model.layers.{}.self_attn.dense"},
                                                   {kUp, "model.layers.{}.mlp.fc1"},
                                                   {kDown, "model.layers.{}.mlp.fc2"}}};

Status ReadNorms(const ObjectReader& reader, ModelConfig* config) {
  return reader.OptionalBool("qk_layernorm", &config->blocks.qk_norm);
}

}  // namespace

const Family kPhi = {.name = "phi2",
                     .hf_architecture = "PhiForCausalLM",
                     .hf_model_type = "phi",
                     .gguf_architecture = "phi2",
                     .blocks = {.norm = ops::NormKind::kLayer,
                                .activation = ops::Activation::kGeluTanh,
                                .gated_mlp = false,
                                .parallel = true,
                                .qkv_bias = true,
                                .attention_bias = true,
                                .mlp_bias = true,
                                .lm_head_bias = true},
                     .keys = {.norm_eps = "layer_norm_eps"},
                     .defaults = {.max_position = 2048, .activation = "gelu_new", .norm_eps = 1e-5f, .rotary_factor = 0.5f},
                     .weights = kPhiNames,
                     .read_config = ReadNorms};

}  // namespace coppice
