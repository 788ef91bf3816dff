// CodeGen: GPT-J's rotation of neighbouring pairs, attention and MLP side by side, q, v and k fused in four parts.
// Layer: model.
#include <array>

#include "core/check.h"
#include "model/families/family.h"
#include "model/object_reader.h"

namespace coppice {
namespace {

using enum WeightRole;

constexpr std::array<WeightName, 8> kCodeGenNames = {{{kEmbedding, "transformer.wte"},
                                                      {kFinalNorm, "transformer.ln_f"},
                                                      {kLmHead, "lm_head"},
                                                      {kAttentionNorm, "transformer.h.{}.ln_1"},
                                                      {kQkv, "transformer.h.{}.attn.qkv_proj"},
                                                      {kAttentionOutput, "transformer.h.{}.attn.out_proj"},
                                                      {kUp, "transformer.h.{}.mlp.fc_in"},
                                                      {kDown, "transformer.h.{}.mlp.fc_out"}}};

// "rotary_dim" is 64 if absent; null rotates whole heads, with the frequencies of the hidden size: no such model is known.
Status ReadRotation(const ObjectReader& reader, ModelConfig* config) {
  config->num_kv_heads = config->num_qo_heads;
  config->rotary_dim = 64;
  if (reader.IsNull("rotary_dim")) return reader.Unsupported("rotary_dim", "an even number of rotated elements of a head");
  return reader.OptionalInt("rotary_dim", 2, &config->rotary_dim);
}

}  // namespace

const Family kCodeGen = {
    .name = "codegen",
    .hf_architecture = "CodeGenForCausalLM",
    .hf_model_type = "codegen",
    .gguf_architecture = "",
    .blocks = {.norm = ops::NormKind::kLayer,
               .activation = ops::Activation::kGeluTanh,
               .gated_mlp = false,
               .parallel = true,
               .rope_pairs = ops::RopePairs::kNeighbours,
               .qkv = QkvLayout::kQuartersQvk,
               .mlp_bias = true,
               .lm_head_bias = true},
    .keys = {.hidden_size = "n_embd",
             .intermediate_size = "n_inner",
             .num_layers = "n_layer",
             .num_heads = "n_head",
             .max_position = "n_positions",
             .activation = "activation_function",
             .norm_eps = "layer_norm_epsilon"},
    .defaults = {.intermediate_multiple = 4, .max_position = 2048, .activation = "gelu_new", .norm_eps = 1e-5f},
    .weights = kCodeGenNames,
    .read_config = ReadRotation};

}  // namespace coppice
