// Llama 1 to 3.x, CodeLlama, Yi, TinyLlama, SmolLM2; Mistral; Qwen2, Qwen2.5 and Qwen3: RMS norms, SwiGLU, rotary embedding.
// Layer: model.
#include <array>

#include "core/check.h"
#include "model/families/family.h"
#include "model/object_reader.h"

namespace coppice {
namespace {

using enum WeightRole;

constexpr std::array<WeightName, 14> kLlamaNames = {{{kEmbedding, "model.embed_tokens"},
                                                     {kFinalNorm, "model.norm"},
                                                     {kLmHead, "lm_head"},
                                                     {kAttentionNorm, "model.layers.{}.input_layernorm"},
                                                     {kQ, "model.layers.{}.self_attn.q_proj"},
                                                     {kK, "model.layers.{}.self_attn.k_proj"},
                                                     {kV, "model.layers.{}.self_attn.v_proj"},
                                                     {kQNorm, "model.layers.{}.self_attn.q_norm"},
                                                     {kKNorm, "model.layers.{}.self_attn.k_norm"},
                                                     {kAttentionOutput, "model.layers.{}.self_attn.o_proj"},
                                                     {kMlpNorm, "model.layers.{}.post_attention_layernorm"},
                                                     {kGate, "model.layers.{}.mlp.gate_proj"},
                                                     {kUp, "model.layers.{}.mlp.up_proj"},
                                                     {kDown, "model.layers.{}.mlp.down_proj"}}};

Status ReadBiases(const ObjectReader& reader, ModelConfig* config) {
  COPPICE_RETURN_IF_ERROR(reader.OptionalBool("attention_bias", &config->blocks.attention_bias));
  COPPICE_RETURN_IF_ERROR(reader.OptionalBool("mlp_bias", &config->blocks.mlp_bias));
  config->blocks.qkv_bias |= config->blocks.attention_bias;
  return OkStatus();
}

}  // namespace

const Family kLlama = {.name = "llama",
                       .hf_architecture = "LlamaForCausalLM",
                       .hf_model_type = "llama",
                       .gguf_architecture = "llama",
                       .blocks = {.coarse_inputs = true},
                       .defaults = {.max_position = 2048},
                       .weights = kLlamaNames,
                       .gguf_interleaves_qk = true,
                       .read_config = ReadBiases};

const Family kMistral = {.name = "mistral",
                         .hf_architecture = "MistralForCausalLM",
                         .hf_model_type = "mistral",
                         .gguf_architecture = "",  // its files say "llama"
                         .blocks = {.coarse_inputs = true},
                         .defaults = {.num_kv_heads = 8, .max_position = 131072, .sliding_window = 4096},
                         .weights = kLlamaNames};

const Family kQwen2 = {.name = "qwen2",
                       .hf_architecture = "Qwen2ForCausalLM",
                       .hf_model_type = "qwen2",
                       .gguf_architecture = "qwen2",
                       .blocks = {.qkv_bias = true},
                       .defaults = {.num_kv_heads = 32, .max_position = 32768, .sliding_window = 4096, .window_needs_flag = true},
                       .weights = kLlamaNames};

const Family kQwen3 = {
    .name = "qwen3",
    .hf_architecture = "Qwen3ForCausalLM",
    .hf_model_type = "qwen3",
    .gguf_architecture = "qwen3",
    .blocks = {.qk_norm = true},
    .defaults = {.num_kv_heads = 32, .head_dim = 128, .max_position = 32768, .sliding_window = 4096, .window_needs_flag = true},
    .weights = kLlamaNames,
    .read_config = ReadBiases};

}  // namespace coppice
