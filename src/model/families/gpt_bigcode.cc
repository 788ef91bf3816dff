// StarCoder and SantaCoder (GPTBigCode): one head of K and V for all queries, learned positions, layer norms, biases everywhere.
// Layer: model.
#include <array>

#include "core/check.h"
#include "model/families/family.h"
#include "model/object_reader.h"

namespace coppice {
namespace {

using enum WeightRole;

constexpr std::array<WeightName, 10> kStarCoderNames = {{{kEmbedding, "transformer.wte"},
                                                         {kPositions, "transformer.wpe"},
                                                         {kFinalNorm, "transformer.ln_f"},
                                                         {kLmHead, "lm_head"},
                                                         {kAttentionNorm, "transformer.h.{}.ln_1"},
                                                         {kQkv, "transformer.h.{}.attn.c_attn"},
                                                         {kAttentionOutput, "transformer.h.{}.attn.c_proj"},
                                                         {kMlpNorm, "transformer.h.{}.ln_2"},
                                                         {kUp, "transformer.h.{}.mlp.c_fc"},
                                                         {kDown, "transformer.h.{}.mlp.c_proj"}}};

Status ReadHeads(const ObjectReader& reader, ModelConfig* config) {
  bool multi_query = true, scaled = true;
  COPPICE_RETURN_IF_ERROR(reader.OptionalBool("multi_query", &multi_query));
  COPPICE_RETURN_IF_ERROR(reader.OptionalBool("scale_attn_weights", &scaled));
  config->num_kv_heads = multi_query ? 1 : config->num_qo_heads;  // whatever "num_key_value_heads" says
  if (!multi_query) config->blocks.qkv = QkvLayout::kPerHead;
  if (!scaled) config->sm_scale = 1;
  return reader.RequireFalse("add_cross_attention");
}

}  // namespace

const Family kGptBigCode = {.name = "starcoder",
                            .hf_architecture = "GPTBigCodeForCausalLM",
                            .hf_model_type = "gpt_bigcode",
                            .gguf_architecture = "starcoder",
                            .blocks = {.norm = ops::NormKind::kLayer,
                                       .activation = ops::Activation::kGeluTanh,
                                       .gated_mlp = false,
                                       .learned_positions = true,
                                       .rotary = false,
                                       .qkv = QkvLayout::kFused,
                                       .qkv_bias = true,
                                       .attention_bias = true,
                                       .mlp_bias = true},
                            .keys = {.hidden_size = "n_embd",
                                     .intermediate_size = "n_inner",
                                     .num_layers = "n_layer",
                                     .num_heads = "n_head",
                                     .max_position = "n_positions",
                                     .activation = "activation_function",
                                     .norm_eps = "layer_norm_epsilon"},
                            .defaults = {.intermediate_multiple = 4,
                                         .max_position = 1024,
                                         .activation = "gelu_pytorch_tanh",
                                         .norm_eps = 1e-5f,
                                         .tie_embeddings = true},
                            .weights = kStarCoderNames,
                            .read_config = ReadHeads};

}  // namespace coppice
