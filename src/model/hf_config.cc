#include "model/hf_config.h"

#include <algorithm>
#include <array>
#include <span>

#include "model/families/family.h"
#include "model/hf_rope.h"
#include "model/json_file.h"
#include "model/object_reader.h"

namespace coppice {
namespace {

using Json = nlohmann::json;

struct ActivationName {
  std::string_view name;  // transformers has several for one function
  ops::Activation activation;
};
constexpr std::array<ActivationName, 9> kActivations = {{{"silu", ops::Activation::kSilu},
                                                         {"swish", ops::Activation::kSilu},
                                                         {"gelu", ops::Activation::kGelu},
                                                         {"gelu_python", ops::Activation::kGelu},
                                                         {"gelu_new", ops::Activation::kGeluTanh},
                                                         {"gelu_fast", ops::Activation::kGeluTanh},
                                                         {"gelu_accurate", ops::Activation::kGeluTanh},
                                                         {"gelu_pytorch_tanh", ops::Activation::kGeluTanh},
                                                         {"gelu_python_tanh", ops::Activation::kGeluTanh}}};

// Keys of other architectures that would change the result here, if a file had them: each must be absent or do nothing.
constexpr std::array<std::string_view, 7> kForeignKeys = {"num_local_experts",   "num_experts",         "logit_scale",
                                                          "logits_scaling",      "residual_multiplier", "attention_multiplier",
                                                          "embedding_multiplier"};

// "LlamaModel" of "LlamaForCausalLM": what transformers writes of a model whose head was left away, or is tied.
std::string WithoutHead(std::string_view architecture) {
  constexpr std::string_view kHead = "ForCausalLM";
  if (architecture.ends_with(kHead)) architecture.remove_suffix(kHead.size());
  return fmt::format("{}Model", architecture);
}

struct FoundFamily {
  const Family* family;
  bool multimodal;  // the family's config is that under "text_config"
};

// By "architectures", or by "model_type" where that is absent.
Result<FoundFamily> FindFamily(const ObjectReader& reader) {
  const Json* architectures = reader.Find("architectures");
  const Json* model_type = reader.Find("model_type");
  const bool by_type = architectures == nullptr && model_type != nullptr && model_type->is_string();
  if (!by_type &&
      (architectures == nullptr || !architectures->is_array() || architectures->size() != 1 || !(*architectures)[0].is_string())) {
    return reader.Wrong("architectures", "a list of one name, such as [\"LlamaForCausalLM\"]");
  }
  const std::string& name = (by_type ? *model_type : (*architectures)[0]).get_ref<const std::string&>();
  std::string supported;
  for (const Family* family : Families()) {
    const std::string_view text = by_type ? family->hf_model_type : family->hf_architecture;
    const std::string_view multimodal = by_type ? family->multimodal.hf_model_type : family->multimodal.hf_architecture;
    if (name == text || (!by_type && name == WithoutHead(text))) return FoundFamily{family, false};
    if (!multimodal.empty() && name == multimodal) return FoundFamily{family, true};
    for (const std::string_view known : {text, multimodal}) {
      if (!known.empty()) supported += fmt::format("{}{}", supported.empty() ? "" : ", ", known);
    }
  }
  return Unimplemented(fmt::format("{}: {} {} is not supported; supported are {}", reader.path(),
                                   by_type ? "model type" : "architecture", Quoted(name), supported));
}

// `fallback` where the key is absent; without one the key is required.
Status ReadSize(const ObjectReader& reader, std::string_view key, std::optional<int32_t> fallback, int32_t* value) {
  if (!fallback || reader.Has(key)) return reader.Int(key, 1, value);
  *value = *fallback;
  return OkStatus();
}

Status ReadSizes(const ObjectReader& reader, const Family& family, ModelConfig* config) {
  const ConfigKeys& keys = family.keys;
  const ConfigDefaults& defaults = family.defaults;
  COPPICE_RETURN_IF_ERROR(ReadSize(reader, keys.hidden_size, defaults.hidden_size, &config->hidden_size));
  if (defaults.intermediate_multiple && !reader.Has(keys.intermediate_size)) {
    if (config->hidden_size > INT32_MAX / *defaults.intermediate_multiple)
      return reader.Wrong(keys.hidden_size, "a smaller number");
    config->intermediate_size = *defaults.intermediate_multiple * config->hidden_size;
  } else {
    COPPICE_RETURN_IF_ERROR(ReadSize(reader, keys.intermediate_size, defaults.intermediate_size, &config->intermediate_size));
  }
  COPPICE_RETURN_IF_ERROR(ReadSize(reader, keys.num_layers, defaults.num_layers, &config->num_layers));
  COPPICE_RETURN_IF_ERROR(ReadSize(reader, keys.num_heads, defaults.num_heads, &config->num_qo_heads));
  // A key that is null says "as many as query heads"; one that is absent leaves it to the family.
  config->num_kv_heads =
      reader.IsNull("num_key_value_heads") ? config->num_qo_heads : defaults.num_kv_heads.value_or(config->num_qo_heads);
  COPPICE_RETURN_IF_ERROR(reader.OptionalInt("num_key_value_heads", 1, &config->num_kv_heads));
  COPPICE_RETURN_IF_ERROR(ReadSize(reader, "vocab_size", defaults.vocab_size, &config->vocab_size));
  COPPICE_RETURN_IF_ERROR(ReadSize(reader, keys.max_position, defaults.max_position, &config->max_position));
  if (reader.Has("head_dim")) return reader.Int("head_dim", 1, &config->head_dim);
  if (defaults.head_dim && !reader.IsNull("head_dim")) {
    config->head_dim = *defaults.head_dim;
    return OkStatus();
  }
  if (config->hidden_size % config->num_qo_heads != 0) {
    return InvalidArgument(fmt::format("{}: {} {} is not a multiple of {} {}, and there is no \"head_dim\"", reader.path(),
                                       Quoted(keys.hidden_size), config->hidden_size, Quoted(keys.num_heads),
                                       config->num_qo_heads));
  }
  config->head_dim = config->hidden_size / config->num_qo_heads;
  return OkStatus();
}

// Which layers have a sliding window: "layer_types" says so where it stands, else a pattern (Gemma) or "max_window_layers" (Qwen)
// does, else all have.
Result<std::vector<bool>> WindowedLayers(const ObjectReader& reader, const Family& family, const ModelConfig& config) {
  std::vector<bool> windowed(config.num_layers, true);
  if (const Json* types = reader.Find("layer_types"); types != nullptr) {
    const std::string expected = fmt::format("{} entries \"full_attention\" or \"sliding_attention\"", config.num_layers);
    if (!types->is_array() || types->size() != windowed.size()) return reader.Wrong("layer_types", expected);
    for (size_t i = 0; i < windowed.size(); ++i) {
      windowed[i] = (*types)[i] == Json("sliding_attention");
      if (!windowed[i] && (*types)[i] != Json("full_attention")) return reader.Wrong("layer_types", expected);
    }
    return windowed;
  }
  int32_t pattern = family.defaults.local_pattern, full_layers = 0;
  if (pattern > 0) {
    COPPICE_RETURN_IF_ERROR(reader.OptionalInt("_sliding_window_pattern", 1, &pattern));
    COPPICE_RETURN_IF_ERROR(reader.OptionalInt("sliding_window_pattern", 1, &pattern));
    for (size_t i = 0; i < windowed.size(); ++i) windowed[i] = (i + 1) % static_cast<size_t>(pattern) != 0;
  } else if (family.defaults.window_needs_flag) {
    full_layers = 28;  // the first, if the file does not say
    COPPICE_RETURN_IF_ERROR(reader.OptionalInt("max_window_layers", 0, &full_layers));
    for (size_t i = 0; i < windowed.size(); ++i) windowed[i] = i >= static_cast<size_t>(full_layers);
  }
  return windowed;
}

Status ReadWindow(const ObjectReader& reader, const Family& family, ModelConfig* config) {
  int32_t window = reader.IsNull("sliding_window") ? 0 : family.defaults.sliding_window;
  if (window == 0) return OkStatus();  // null, or a family that has none whatever its file says
  COPPICE_RETURN_IF_ERROR(reader.OptionalInt("sliding_window", 1, &window));
  bool in_use = !family.defaults.window_needs_flag;
  COPPICE_RETURN_IF_ERROR(reader.OptionalBool("use_sliding_window", &in_use));
  if (!in_use) return OkStatus();
  COPPICE_ASSIGN_OR_RETURN(std::vector<bool> windowed, WindowedLayers(reader, family, *config));
  const auto count = std::ranges::count(windowed, true);
  if (count == 0) return OkStatus();
  if (count == config->num_layers) {  // no others
    config->window = window;
    config->rope = config->local_rope;
    return OkStatus();
  }
  config->local_layers = std::move(windowed);
  config->local_window = window;
  return OkStatus();
}

Status ReadActivation(const ObjectReader& reader, const Family& family, ModelConfig* config) {
  COPPICE_ASSIGN_OR_RETURN(const std::string name, reader.String(family.keys.activation, family.defaults.activation));
  const auto found = std::ranges::find(kActivations, name, &ActivationName::name);
  if (found == kActivations.end()) {
    std::string supported;
    for (const ActivationName& known : kActivations) supported += fmt::format("{}{}", supported.empty() ? "" : ", ", known.name);
    return reader.Unsupported(family.keys.activation, fmt::format("one of {}", supported));
  }
  config->blocks.activation = found->activation;
  return OkStatus();
}

Status RefuseForeignKeys(const ObjectReader& reader) {
  if (reader.Has("quantization_config")) {
    return Unimplemented(
        fmt::format("{}: \"quantization_config\": quantised safetensors are not supported; use the F32, F16 or BF16 "
                    "folder, or a GGUF file",
                    reader.path()));
  }
  for (const std::string_view key : kForeignKeys) {
    const Json* value = reader.Find(key);
    if (value != nullptr && *value != Json(0) && *value != Json(1))
      return reader.Unsupported(key, "no such key in this architecture");
  }
  return OkStatus();
}

// `readers`: those of config.json, the first that states a token decides. generation_config.json comes before them for ends.
Status ReadTokens(std::span<const ObjectReader* const> readers, const TextFile& generation_config, ModelConfig* config) {
  std::vector<int32_t> bos;
  if (!generation_config.text.empty()) {
    COPPICE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(generation_config.text, generation_config.path));
    const ObjectReader generation(json, generation_config.path);
    COPPICE_RETURN_IF_ERROR(generation.TokenIds("eos_token_id", config->vocab_size, &config->eos_token_ids));
  }
  for (const ObjectReader* reader : readers) {
    if (bos.empty()) COPPICE_RETURN_IF_ERROR(reader->TokenIds("bos_token_id", config->vocab_size, &bos));
    if (!config->eos_token_ids.empty()) continue;
    COPPICE_RETURN_IF_ERROR(reader->TokenIds("eos_token_id", config->vocab_size, &config->eos_token_ids));
  }
  if (!bos.empty()) config->bos_token_id = bos.front();
  return OkStatus();
}

}  // namespace

Result<ModelConfig> ParseHuggingFaceConfig(const TextFile& config_file, const TextFile& generation_config) {
  COPPICE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(config_file.text, config_file.path));
  const ObjectReader whole(json, config_file.path);
  COPPICE_ASSIGN_OR_RETURN(const FoundFamily found, FindFamily(whole));
  const Family* family = found.family;
  COPPICE_ASSIGN_OR_RETURN(const std::optional<ObjectReader> text, whole.Object("text_config"));
  if (found.multimodal && !text) return whole.Wrong("text_config", "an object");
  const ObjectReader& reader = found.multimodal ? *text : whole;
  ModelConfig config;
  config.architecture = std::string(family->name);
  config.blocks = family->blocks;
  config.norm_eps = family->defaults.norm_eps;
  config.tie_embeddings = family->defaults.tie_embeddings;
  COPPICE_RETURN_IF_ERROR(RefuseForeignKeys(whole));
  COPPICE_RETURN_IF_ERROR(RefuseForeignKeys(reader));
  COPPICE_RETURN_IF_ERROR(ReadSizes(reader, *family, &config));
  if (config.blocks.rotary) COPPICE_RETURN_IF_ERROR(ReadRope(reader, family->defaults, &config));
  COPPICE_RETURN_IF_ERROR(ReadWindow(reader, *family, &config));
  COPPICE_RETURN_IF_ERROR(ReadActivation(reader, *family, &config));
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat(family->keys.norm_eps, &config.norm_eps));
  COPPICE_RETURN_IF_ERROR(reader.OptionalBool("tie_word_embeddings", &config.tie_embeddings));
  COPPICE_RETURN_IF_ERROR(whole.OptionalBool("tie_word_embeddings", &config.tie_embeddings));
  COPPICE_RETURN_IF_ERROR(ReadTokens(std::array{&whole, &reader}, generation_config, &config));
  if (family->read_config != nullptr) COPPICE_RETURN_IF_ERROR(family->read_config(reader, &config));
  COPPICE_RETURN_IF_ERROR(CheckConfig(config, config_file.path));
  // Yarn states the length that it was made for: its factor times the original length, whatever "max_position_embeddings" says.
  // Linear scaling does not: files have the length before it there (Vicuna 16k) or the one after it (DeepSeek Coder).
  if (config.rope.scaling == RopeScaling::kYarn) config.max_position = config.longest_context();
  return config;
}

}  // namespace coppice
