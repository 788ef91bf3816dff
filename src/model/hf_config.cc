#include "model/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "core/check.h"
#include "model/error_text.h"
#include "model/json_file.h"

namespace coppice {
namespace {

using Json = nlohmann::json;

// One line per family: what its architecture fixes and config.json does not say.
struct HfFamily {
  std::string_view architecture;  // config.json "architectures"
  std::string_view name;          // ModelConfig::architecture
  bool qkv_bias;
  bool qk_norm;
};
constexpr std::array<HfFamily, 4> kFamilies = {{{"LlamaForCausalLM", "llama", false, false},
                                                {"MistralForCausalLM", "mistral", false, false},
                                                {"Qwen2ForCausalLM", "qwen2", true, false},
                                                {"Qwen3ForCausalLM", "qwen3", false, true}}};

// Typed reads of one JSON object; null counts as absent. Errors name the file and the key.
class ObjectReader {
 public:
  ObjectReader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const Json* Find(std::string_view key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  Status Wrong(std::string_view key, std::string_view expected) const {
    const Json* value = Find(key);
    if (value == nullptr) return InvalidArgument(fmt::format("{}: {} is missing, expected {}", path_, Quoted(key), expected));
    return InvalidArgument(fmt::format("{}: {} is {}, expected {}", path_, Quoted(key), Shown(*value), expected));
  }

  Status Int(std::string_view key, int32_t min, int32_t* value) const {
    const Json* json = Find(key);
    const std::optional<int32_t> number = json == nullptr ? std::nullopt : AsInt(*json, min);
    if (!number) return Wrong(key, fmt::format("an integer in {}..{}", min, INT32_MAX));
    *value = *number;
    return OkStatus();
  }
  Status OptionalInt(std::string_view key, int32_t min, int32_t* value) const {
    return Has(key) ? Int(key, min, value) : OkStatus();
  }

  Status Float(std::string_view key, float* value) const {
    const Json* json = Find(key);
    const double number = json != nullptr && json->is_number() ? json->get<double>() : std::numeric_limits<double>::infinity();
    if (!(std::abs(number) <= std::numeric_limits<float>::max())) return Wrong(key, "a number");
    *value = static_cast<float>(number);
    return OkStatus();
  }
  Status OptionalFloat(std::string_view key, float* value) const { return Has(key) ? Float(key, value) : OkStatus(); }

  Status OptionalBool(std::string_view key, bool* value) const {
    const Json* json = Find(key);
    if (json == nullptr) return OkStatus();
    if (!json->is_boolean()) return Wrong(key, "true or false");
    *value = json->get<bool>();
    return OkStatus();
  }

  // A string, or `fallback` if absent.
  Result<std::string> String(std::string_view key, std::string_view fallback) const {
    const Json* json = Find(key);
    if (json == nullptr) return std::string(fallback);
    if (!json->is_string()) return Wrong(key, "a string");
    return json->get<std::string>();
  }

  // An object to read from; nothing if absent.
  Result<std::optional<ObjectReader>> Object(std::string_view key) const {
    const Json* json = Find(key);
    if (json == nullptr) return std::optional<ObjectReader>();
    if (!json->is_object()) return Wrong(key, "an object");
    return std::optional(ObjectReader(*json, fmt::format("{}: {}", path_, Quoted(key))));
  }

  // One token id or a list of them.
  Status TokenIds(std::string_view key, int32_t vocab_size, std::vector<int32_t>* ids) const {
    const Json* json = Find(key);
    if (json == nullptr) return OkStatus();
    const Json list = json->is_array() ? *json : Json::array({*json});
    for (const Json& entry : list) {
      const std::optional<int32_t> id = AsInt(entry, 0);
      if (!id || *id >= vocab_size) return Wrong(key, fmt::format("token ids in 0..{}", vocab_size - 1));
      ids->push_back(*id);
    }
    return OkStatus();
  }

 private:
  static std::optional<int32_t> AsInt(const Json& json, int32_t min) {
    if (!json.is_number_integer()) return std::nullopt;
    if (json.is_number_unsigned() && json.get<uint64_t>() > INT32_MAX) return std::nullopt;
    const int64_t number = json.get<int64_t>();
    return number >= min && number <= INT32_MAX ? std::optional(static_cast<int32_t>(number)) : std::nullopt;
  }
  static std::string Shown(const Json& json) {
    return json.is_primitive() ? Quoted(json.is_string() ? json.get_ref<const std::string&>() : json.dump())
                               : std::string(json.type_name());
  }

  const Json& json_;
  std::string path_;
};

Result<const HfFamily*> FindFamily(const ObjectReader& reader) {
  const Json* architectures = reader.Find("architectures");
  if (architectures == nullptr || !architectures->is_array() || architectures->size() != 1 || !(*architectures)[0].is_string()) {
    return reader.Wrong("architectures", "a list of one name, such as [\"LlamaForCausalLM\"]");
  }
  const std::string& name = (*architectures)[0].get_ref<const std::string&>();
  const auto found = std::ranges::find(kFamilies, name, &HfFamily::architecture);
  if (found != kFamilies.end()) return &*found;
  std::string supported;
  for (const HfFamily& family : kFamilies) supported += fmt::format("{}{}", supported.empty() ? "" : ", ", family.architecture);
  return Unimplemented(
      fmt::format("{}: architecture {} is not supported; supported are {}", reader.path(), Quoted(name), supported));
}

Status ReadSizes(const ObjectReader& reader, ModelConfig* config) {
  COPPICE_RETURN_IF_ERROR(reader.Int("hidden_size", 1, &config->hidden_size));
  COPPICE_RETURN_IF_ERROR(reader.Int("intermediate_size", 1, &config->intermediate_size));
  COPPICE_RETURN_IF_ERROR(reader.Int("num_hidden_layers", 1, &config->num_layers));
  COPPICE_RETURN_IF_ERROR(reader.Int("num_attention_heads", 1, &config->num_qo_heads));
  config->num_kv_heads = config->num_qo_heads;
  COPPICE_RETURN_IF_ERROR(reader.OptionalInt("num_key_value_heads", 1, &config->num_kv_heads));
  COPPICE_RETURN_IF_ERROR(reader.Int("vocab_size", 1, &config->vocab_size));
  COPPICE_RETURN_IF_ERROR(reader.Int("max_position_embeddings", 1, &config->max_position));
  if (reader.Has("head_dim")) return reader.Int("head_dim", 1, &config->head_dim);
  if (config->hidden_size % config->num_qo_heads != 0) {
    return InvalidArgument(
        fmt::format("{}: \"hidden_size\" {} is not a multiple of \"num_attention_heads\" {}, and there is no \"head_dim\"",
                    reader.path(), config->hidden_size, config->num_qo_heads));
  }
  config->head_dim = config->hidden_size / config->num_qo_heads;
  return OkStatus();
}

// The type and its numbers, in the object that holds them in either spelling.
Status ReadRopeScaling(const ObjectReader& reader, RopeConfig* rope) {
  // "type" is the older name of "rope_type"; where both stand they agree.
  COPPICE_ASSIGN_OR_RETURN(const std::string older, reader.String("type", "default"));
  COPPICE_ASSIGN_OR_RETURN(const std::string type, reader.String("rope_type", older));
  float partial = 1.0f;
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("partial_rotary_factor", &partial));
  if (partial != 1.0f) {
    return Unimplemented(fmt::format("{}: \"partial_rotary_factor\" {} is not supported, expected 1", reader.path(), partial));
  }
  if (type == "default") return OkStatus();
  if (type != "linear" && type != "llama3") {
    return Unimplemented(
        fmt::format("{}: RoPE type {} is not supported; supported are default, linear, llama3", reader.path(), Quoted(type)));
  }
  COPPICE_RETURN_IF_ERROR(reader.Float("factor", &rope->factor));
  rope->scaling = type == "linear" ? RopeScaling::kLinear : RopeScaling::kLlama3;
  if (rope->scaling == RopeScaling::kLinear) return OkStatus();
  COPPICE_RETURN_IF_ERROR(reader.Float("low_freq_factor", &rope->low_freq_factor));
  COPPICE_RETURN_IF_ERROR(reader.Float("high_freq_factor", &rope->high_freq_factor));
  return reader.Int("original_max_position_embeddings", 1, &rope->original_max_position);
}

Status ReadRope(const ObjectReader& reader, RopeConfig* rope) {
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("rope_theta", &rope->theta));
  float partial = 1.0f;
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("partial_rotary_factor", &partial));
  if (partial != 1.0f) {
    return Unimplemented(fmt::format("{}: \"partial_rotary_factor\" {} is not supported, expected 1", reader.path(), partial));
  }
  COPPICE_ASSIGN_OR_RETURN(const std::optional<ObjectReader> parameters, reader.Object("rope_parameters"));
  if (parameters) {
    COPPICE_RETURN_IF_ERROR(parameters->OptionalFloat("rope_theta", &rope->theta));
    return ReadRopeScaling(*parameters, rope);
  }
  COPPICE_ASSIGN_OR_RETURN(const std::optional<ObjectReader> scaling, reader.Object("rope_scaling"));
  return scaling ? ReadRopeScaling(*scaling, rope) : OkStatus();
}

// One window for all layers, or none: "layer_types" says so where it stands, else "use_sliding_window" and "max_window_layers"
// (Qwen) do, else a given "sliding_window" (Mistral) is in force.
Status ReadWindow(const ObjectReader& reader, ModelConfig* config) {
  int32_t window = 0;
  COPPICE_RETURN_IF_ERROR(reader.OptionalInt("sliding_window", 1, &window));
  bool in_use = true;
  COPPICE_RETURN_IF_ERROR(reader.OptionalBool("use_sliding_window", &in_use));
  if (window == 0 || !in_use) return OkStatus();

  int32_t windowed_layers = config->num_layers;
  if (const Json* types = reader.Find("layer_types"); types != nullptr) {
    windowed_layers = types->is_array() ? static_cast<int32_t>(std::ranges::count(*types, Json("sliding_attention"))) : 0;
    const auto full_layers = types->is_array() ? std::ranges::count(*types, Json("full_attention")) : 0;
    if (windowed_layers + full_layers != config->num_layers) {
      return reader.Wrong("layer_types", fmt::format("{} entries \"full_attention\" or \"sliding_attention\"", config->num_layers));
    }
  } else if (reader.Has("max_window_layers")) {
    int32_t full_layers = 0;
    COPPICE_RETURN_IF_ERROR(reader.Int("max_window_layers", 0, &full_layers));
    windowed_layers = std::max(0, config->num_layers - full_layers);
  }
  if (windowed_layers != 0 && windowed_layers != config->num_layers) {
    return Unimplemented(fmt::format("{}: a sliding window in {} of {} layers is not supported, expected all or none",
                                     reader.path(), windowed_layers, config->num_layers));
  }
  config->window = windowed_layers == 0 ? 0 : window;
  return OkStatus();
}

Status ReadFlags(const ObjectReader& reader, const HfFamily& family, ModelConfig* config) {
  COPPICE_ASSIGN_OR_RETURN(const std::string activation, reader.String("hidden_act", "silu"));
  if (activation != "silu") {
    return Unimplemented(
        fmt::format("{}: \"hidden_act\" {} is not supported, expected \"silu\"", reader.path(), Quoted(activation)));
  }
  if (reader.Has("quantization_config")) {
    return Unimplemented(
        fmt::format("{}: \"quantization_config\": quantised safetensors are not supported; use the F32, F16 or BF16 "
                    "folder, or a GGUF file",
                    reader.path()));
  }
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("rms_norm_eps", &config->rms_norm_eps));
  COPPICE_RETURN_IF_ERROR(reader.OptionalBool("tie_word_embeddings", &config->tie_embeddings));
  COPPICE_RETURN_IF_ERROR(reader.OptionalBool("attention_bias", &config->attention_bias));
  COPPICE_RETURN_IF_ERROR(reader.OptionalBool("mlp_bias", &config->mlp_bias));
  config->qkv_bias = family.qkv_bias || config->attention_bias;
  config->qk_norm = family.qk_norm;
  return OkStatus();
}

Status ReadTokens(const ObjectReader& reader, const TextFile& generation_config, ModelConfig* config) {
  std::vector<int32_t> bos;
  COPPICE_RETURN_IF_ERROR(reader.TokenIds("bos_token_id", config->vocab_size, &bos));
  if (!bos.empty()) config->bos_token_id = bos.front();
  if (!generation_config.text.empty()) {
    COPPICE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(generation_config.text, generation_config.path));
    const ObjectReader generation(json, generation_config.path);
    COPPICE_RETURN_IF_ERROR(generation.TokenIds("eos_token_id", config->vocab_size, &config->eos_token_ids));
  }
  return config->eos_token_ids.empty() ? reader.TokenIds("eos_token_id", config->vocab_size, &config->eos_token_ids) : OkStatus();
}

}  // namespace

Result<ModelConfig> ParseHuggingFaceConfig(const TextFile& config_file, const TextFile& generation_config) {
  COPPICE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(config_file.text, config_file.path));
  const ObjectReader reader(json, config_file.path);
  COPPICE_ASSIGN_OR_RETURN(const HfFamily* family, FindFamily(reader));
  ModelConfig config;
  config.architecture = std::string(family->name);
  COPPICE_RETURN_IF_ERROR(ReadSizes(reader, &config));
  COPPICE_RETURN_IF_ERROR(ReadRope(reader, &config.rope));
  COPPICE_RETURN_IF_ERROR(ReadWindow(reader, &config));
  COPPICE_RETURN_IF_ERROR(ReadFlags(reader, *family, &config));
  COPPICE_RETURN_IF_ERROR(ReadTokens(reader, generation_config, &config));
  COPPICE_RETURN_IF_ERROR(CheckConfig(config, config_file.path));
  return config;
}

}  // namespace coppice
