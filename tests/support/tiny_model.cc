#include "tests/support/tiny_model.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/check.h"
#include "model/weights.h"

namespace coppice::testing {
namespace {

std::vector<int64_t> ShapeOf(const TinyModel& model, const std::string& name) { return ExpectedWeights(model.config).at(name); }

// The permutation of rows of q and k by llama.cpp's converter: [heads, 2, half] -> [heads, half, 2].
std::vector<float> Interleave(const std::vector<float>& rows, int64_t heads, int64_t row_elements) {
  std::vector<float> out;
  const int64_t half = static_cast<int64_t>(rows.size()) / row_elements / heads / 2;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < half; ++i) {
      for (int64_t side = 0; side < 2; ++side) {
        const auto row = rows.begin() + ((head * 2 + side) * half + i) * row_elements;
        out.insert(out.end(), row, row + row_elements);
      }
    }
  }
  return out;
}

std::string GgufName(const std::string& architecture, std::string name) {
  using Parts = std::vector<std::pair<std::string, std::string>>;
  const Parts gemma3 = {{"post_attention_layernorm", "post_attention_norm"},
                        {"pre_feedforward_layernorm", "ffn_norm"},
                        {"post_feedforward_layernorm", "post_ffw_norm"}};
  const Parts common = {{"model.layers.", "blk."},
                        {"transformer.h.", "blk."},
                        {"model.embed_tokens", "token_embd"},
                        {"transformer.wte", "token_embd"},
                        {"transformer.wpe", "position_embd"},
                        {"model.norm", "output_norm"},
                        {"model.final_layernorm", "output_norm"},
                        {"transformer.ln_f", "output_norm"},
                        {"lm_head", "output"},
                        {"input_layernorm", "attn_norm"},
                        {"ln_1", "attn_norm"},
                        {"post_attention_layernorm", "ffn_norm"},
                        {"ln_2", "ffn_norm"},
                        {"self_attn.q_proj", "attn_q"},
                        {"self_attn.k_proj", "attn_k"},
                        {"self_attn.v_proj", "attn_v"},
                        {"self_attn.qkv_proj", "attn_qkv"},
                        {"attn.c_attn", "attn_qkv"},
                        {"self_attn.o_proj", "attn_output"},
                        {"self_attn.dense", "attn_output"},
                        {"attn.c_proj", "attn_output"},
                        {"self_attn.q_norm", "attn_q_norm"},
                        {"self_attn.k_norm", "attn_k_norm"},
                        {"mlp.gate_proj", "ffn_gate"},
                        {"mlp.up_proj", "ffn_up"},
                        {"mlp.fc1", "ffn_up"},
                        {"mlp.c_fc", "ffn_up"},
                        {"mlp.down_proj", "ffn_down"},
                        {"mlp.fc2", "ffn_down"},
                        {"mlp.c_proj", "ffn_down"}};
  for (const Parts* parts : {architecture == "gemma3" ? &gemma3 : nullptr, &common}) {
    if (parts == nullptr) continue;
    for (const auto& [from, to] : *parts) {
      if (const size_t at = name.find(from); at != name.npos) name.replace(at, from.size(), to);
    }
  }
  return name;
}

}  // namespace

ModelConfig TinyConfig() {
  ModelConfig config;
  config.architecture = "llama";
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_layers = 2;
  config.num_qo_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.vocab_size = 40;
  config.max_position = 128;
  return config;
}

TinyModel RandomModel(const ModelConfig& config, uint64_t seed) {
  TinyModel model{.config = config};
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.2f);
  for (const auto& [name, shape] : ExpectedWeights(config)) {
    size_t count = 1;
    for (const int64_t size : shape) count *= static_cast<size_t>(size);
    std::vector<float>& values = model.weights[name];
    values.resize(count);
    const float mean = name.find("norm") != name.npos ? 1.0f : 0.0f;
    for (float& value : values) value = mean + normal(random);
  }
  return model;
}

GgufWriter ToGguf(const TinyModel& model, uint32_t version, StoredType matrices) {
  COPPICE_CHECK(matrices == StoredType::kF32 || matrices == StoredType::kF16);
  const ModelConfig& config = model.config;
  const auto key = [&](const char* name) { return config.architecture + "." + name; };
  GgufWriter writer(version);
  writer.String("general.architecture", config.architecture)
      .U32(key("block_count"), config.num_layers)
      .U32(key("context_length"), config.max_position)
      .U32(key("embedding_length"), config.hidden_size)
      .U32(key("feed_forward_length"), config.intermediate_size)
      .U32(key("attention.head_count"), config.num_qo_heads)
      .U32(key("attention.head_count_kv"), config.num_kv_heads)
      .U32(key("attention.key_length"), config.head_dim)
      .U32(key("attention.value_length"), config.head_dim)
      .F32(key(config.blocks.norm == ops::NormKind::kRms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"),
           config.norm_eps)
      .U32(key("rope.dimension_count"), config.rotated())
      .F32(key("rope.freq_base"), config.rope.theta);
  for (const auto& [name, values] : model.weights) {
    const std::vector<int64_t> shape = ShapeOf(model, name);
    const int64_t row_elements = shape.size() == 1 ? 1 : shape[1];
    std::vector<float> rows = values;
    if (config.architecture == "llama" && name.find("q_proj") != name.npos)
      rows = Interleave(rows, config.num_qo_heads, row_elements);
    if (config.architecture == "llama" && name.find("k_proj") != name.npos)
      rows = Interleave(rows, config.num_kv_heads, row_elements);
    constexpr uint32_t kGgufF32 = 0, kGgufF16 = 1;
    if (shape.size() > 1 && matrices == StoredType::kF16) {
      std::vector<F16> rounded(rows.size());
      std::ranges::transform(rows, rounded.begin(), F16::FromFloat);
      writer.Tensor(GgufName(config.architecture, name), shape, kGgufF16, Raw(std::span<const F16>(rounded)));
    } else {
      writer.Tensor(GgufName(config.architecture, name), shape, kGgufF32, Raw(std::span<const float>(rows)));
    }
  }
  return writer;
}

std::string ToConfigJson(const ModelConfig& config) {
  const std::map<std::string, std::string> architectures = {{"llama", "LlamaForCausalLM"},
                                                            {"mistral", "MistralForCausalLM"},
                                                            {"qwen2", "Qwen2ForCausalLM"},
                                                            {"qwen3", "Qwen3ForCausalLM"}};
  nlohmann::json json = {{"architectures", {architectures.at(config.architecture)}},
                         {"hidden_act", "silu"},
                         {"hidden_size", config.hidden_size},
                         {"intermediate_size", config.intermediate_size},
                         {"num_hidden_layers", config.num_layers},
                         {"num_attention_heads", config.num_qo_heads},
                         {"num_key_value_heads", config.num_kv_heads},
                         {"head_dim", config.head_dim},
                         {"vocab_size", config.vocab_size},
                         {"max_position_embeddings", config.max_position},
                         {"rms_norm_eps", config.norm_eps},
                         {"rope_theta", config.rope.theta},
                         {"tie_word_embeddings", config.tie_embeddings},
                         {"attention_bias", config.blocks.attention_bias},
                         {"mlp_bias", config.blocks.mlp_bias}};
  if (config.window > 0) json["sliding_window"] = config.window;
  return json.dump(2);
}

std::string ToSafetensors(const TinyModel& model, const std::vector<std::string>& names) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  const auto add = [&](const std::string& name) {
    const std::string bytes = Raw(std::span<const float>(model.weights.at(name)));
    header[name] = {{"dtype", "F32"}, {"shape", ShapeOf(model, name)}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  };
  if (names.empty()) {
    for (const auto& [name, values] : model.weights) add(name);
  } else {
    for (const std::string& name : names) add(name);
  }
  const std::string text = header.dump();
  return Raw(static_cast<uint64_t>(text.size())) + text + data;
}

TemporaryFolder::TemporaryFolder() {
  path_ = (std::filesystem::temp_directory_path() / "coppice_test_XXXXXX").string();
  COPPICE_CHECK(mkdtemp(path_.data()) != nullptr);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::Write(const std::string& name, const std::string& contents) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

}  // namespace coppice::testing
