#include "model/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/check.h"

namespace coppice {
namespace {

using enum WeightRole;

// GGUF names roles alike in all families; those of a layer follow "blk.N.".
constexpr std::array<WeightName, 18> kGgufNames = {{{kEmbedding, "token_embd"},
                                                    {kPositions, "position_embd"},
                                                    {kFinalNorm, "output_norm"},
                                                    {kLmHead, "output"},
                                                    {kAttentionNorm, "attn_norm"},
                                                    {kQ, "attn_q"},
                                                    {kK, "attn_k"},
                                                    {kV, "attn_v"},
                                                    {kQkv, "attn_qkv"},
                                                    {kQNorm, "attn_q_norm"},
                                                    {kKNorm, "attn_k_norm"},
                                                    {kAttentionOutput, "attn_output"},
                                                    {kPostAttentionNorm, "post_attention_norm"},
                                                    {kMlpNorm, "ffn_norm"},
                                                    {kGate, "ffn_gate"},
                                                    {kUp, "ffn_up"},
                                                    {kDown, "ffn_down"},
                                                    {kPostMlpNorm, "post_ffw_norm"}}};

bool IsOfLayer(WeightRole role) { return role >= kAttentionNorm; }

std::string WithLayer(std::string_view name, std::string_view layer) {
  const size_t at = name.find("{}");
  return fmt::format("{}{}{}", name.substr(0, at), layer, name.substr(at + 2));
}

}  // namespace

std::optional<std::string_view> NameInFolders(const Family& family, WeightRole role) {
  const auto found = std::ranges::find(family.weights, role, &WeightName::role);
  return found == family.weights.end() ? std::nullopt : std::optional(found->name);
}

WeightMap WeightsOf(const ModelConfig& config) {
  const Family& family = FamilyNamed(config.architecture);
  const Blocks& blocks = config.blocks;
  const int64_t hidden = config.hidden_size, mlp = config.intermediate_size, vocab = config.vocab_size;
  const int64_t q_rows = int64_t{config.num_qo_heads} * config.head_dim, kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  const bool norm_bias = blocks.norm == ops::NormKind::kLayer;
  WeightMap weights;
  const auto add = [&](int32_t layer, WeightRole role, std::vector<int64_t> shape, bool bias) {
    const std::optional<std::string_view> name = NameInFolders(family, role);
    COPPICE_CHECK(name.has_value());  // a family names what its blocks have
    weights[{layer, role}] = {layer == kNoLayer ? std::string(*name) : WithLayer(*name, std::to_string(layer)), std::move(shape),
                              bias};
  };
  add(kNoLayer, kEmbedding, {vocab, hidden}, false);
  if (blocks.learned_positions) add(kNoLayer, kPositions, {config.max_position, hidden}, false);
  add(kNoLayer, kFinalNorm, {hidden}, norm_bias);
  if (!config.tie_embeddings) add(kNoLayer, kLmHead, {vocab, hidden}, blocks.lm_head_bias);
  for (int32_t i = 0; i < config.num_layers; ++i) {
    add(i, kAttentionNorm, {hidden}, norm_bias);
    if (blocks.qkv == QkvLayout::kSeparate) {
      add(i, kQ, {q_rows, hidden}, blocks.qkv_bias);
      add(i, kK, {kv_rows, hidden}, blocks.qkv_bias);
      add(i, kV, {kv_rows, hidden}, blocks.qkv_bias);
    } else {
      add(i, kQkv, {q_rows + 2 * kv_rows, hidden}, blocks.qkv_bias);
    }
    if (blocks.qk_norm) {
      add(i, kQNorm, {config.head_dim}, norm_bias);
      add(i, kKNorm, {config.head_dim}, norm_bias);
    }
    add(i, kAttentionOutput, {hidden, q_rows}, blocks.attention_bias);
    if (blocks.post_norms) add(i, kPostAttentionNorm, {hidden}, norm_bias);
    if (!blocks.parallel) add(i, kMlpNorm, {hidden}, norm_bias);
    if (blocks.gated_mlp) add(i, kGate, {mlp, hidden}, blocks.mlp_bias);
    add(i, kUp, {mlp, hidden}, blocks.mlp_bias);
    add(i, kDown, {hidden, mlp}, blocks.mlp_bias);
    if (blocks.post_norms) add(i, kPostMlpNorm, {hidden}, norm_bias);
  }
  return weights;
}

std::vector<RowRun> FusedRows(const ModelConfig& config) {
  const int64_t head = config.head_dim, q_rows = config.num_qo_heads * head, kv_rows = config.num_kv_heads * head;
  std::vector<RowRun> runs;
  switch (config.blocks.qkv) {
    case QkvLayout::kSeparate: break;
    case QkvLayout::kFused: runs = {{0, q_rows + 2 * kv_rows}}; break;
    case QkvLayout::kPerHead:
      for (int64_t part = 0; part < 3; ++part) {
        for (int64_t h = 0; h < config.num_qo_heads; ++h) runs.push_back({(3 * h + part) * head, head});
      }
      break;
    case QkvLayout::kQuartersQvk:
      for (const int64_t part : {0, 2, 1}) {  // q, k, v of [quarter][q, v, k]
        for (int64_t quarter = 0; quarter < 4; ++quarter) runs.push_back({(3 * quarter + part) * q_rows / 4, q_rows / 4});
      }
      break;
  }
  return runs;
}

std::vector<RowRun> SelectRows(const std::vector<RowRun>& runs, RowRun of) {
  std::vector<RowRun> selected;
  int64_t first = 0;  // of the run
  for (const RowRun& run : runs) {
    const int64_t begin = std::max(of.begin, first), end = std::min(of.begin + of.count, first + run.count);
    if (begin < end) selected.push_back({run.begin + begin - first, end - begin});
    first += run.count;
  }
  return selected;
}

std::optional<WeightRole> RoleOfGgufName(std::string_view stem) {
  const auto found = std::ranges::find(kGgufNames, stem, &WeightName::name);
  return found == kGgufNames.end() ? std::nullopt : std::optional(found->role);
}

std::optional<std::string> HuggingFaceName(const Family& family, std::string_view gguf_name) {
  constexpr std::string_view kPrefix = "blk.";
  std::string_view layer, stem = gguf_name;
  if (gguf_name.starts_with(kPrefix)) {
    const size_t end = gguf_name.find('.', kPrefix.size());
    if (end == gguf_name.npos) return std::nullopt;
    layer = gguf_name.substr(kPrefix.size(), end - kPrefix.size());
    stem = gguf_name.substr(end + 1);
  }
  const std::optional<WeightRole> role = RoleOfGgufName(stem);
  if (!role || IsOfLayer(*role) == layer.empty()) return std::nullopt;
  const std::optional<std::string_view> name = NameInFolders(family, *role);
  if (!name) return std::nullopt;
  return layer.empty() ? std::string(*name) : WithLayer(*name, layer);
}

}  // namespace coppice
