#include "model/hf_rope.h"

#include <algorithm>
#include <array>

namespace coppice {
namespace {

constexpr std::array<std::string_view, 19> kKnownKeys = {"rope_type",
                                                         "type",
                                                         "rope_theta",
                                                         "factor",
                                                         "low_freq_factor",
                                                         "high_freq_factor",
                                                         "original_max_position_embeddings",
                                                         "partial_rotary_factor",
                                                         "beta_fast",
                                                         "beta_slow",
                                                         "mscale",
                                                         "mscale_all_dim",
                                                         "attention_factor",
                                                         "truncate",
                                                         "short_factor",
                                                         "long_factor",
                                                         "finetuned",
                                                         "mrope_section",
                                                         "mrope_interleaved"};

// YaRN's correction of the attention's temperature.
double YarnScale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

Status ReadYarn(const ObjectReader& reader, RopeConfig* rope) {
  rope->scaling = RopeScaling::kYarn;
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("beta_fast", &rope->beta_fast));
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("beta_slow", &rope->beta_slow));
  COPPICE_RETURN_IF_ERROR(reader.OptionalBool("truncate", &rope->truncate));
  float mscale = 0, mscale_all_dim = 0;
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("mscale", &mscale));
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("mscale_all_dim", &mscale_all_dim));
  const double scale = mscale != 0 && mscale_all_dim != 0
                           ? YarnScale(rope->factor, mscale) / YarnScale(rope->factor, mscale_all_dim)
                           : YarnScale(rope->factor, 1);
  rope->attention_factor = static_cast<float>(scale);
  return reader.OptionalFloat("attention_factor", &rope->attention_factor);
}

Status ReadLongRope(const ObjectReader& reader, RopeConfig* rope) {
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloats("short_factor", &rope->frequency_divisors));
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloats("long_factor", &rope->long_divisors));
  if (rope->frequency_divisors.empty()) return reader.Wrong("short_factor", "a list of numbers");
  if (rope->long_divisors.empty()) return reader.Wrong("long_factor", "a list of numbers");
  if (rope->factor > 1) {
    const double scale = std::sqrt(1 + std::log(double{rope->factor}) / std::log(static_cast<double>(rope->original_max_position)));
    rope->attention_factor = static_cast<float>(scale);
  }
  return reader.OptionalFloat("attention_factor", &rope->attention_factor);
}

// One object of parameters: {"rope_type": "yarn", "factor": 4, ...}.
Status ReadParameters(const ObjectReader& reader, const ModelConfig& config, RopeConfig* rope, float* rotary_factor) {
  for (const auto& [key, value] : reader.json().items()) {
    if (!value.is_null() && std::ranges::find(kKnownKeys, std::string_view(key)) == kKnownKeys.end())
      return reader.Unsupported(key, "a key of RoPE parameters that transformers defines");
  }
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("rope_theta", &rope->theta));
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("partial_rotary_factor", rotary_factor));
  // "type" is the older name of "rope_type"; where both stand they agree.
  COPPICE_ASSIGN_OR_RETURN(const std::string older, reader.String("type", "default"));
  COPPICE_ASSIGN_OR_RETURN(std::string type, reader.String("rope_type", older));
  if (type == "su") type = "longrope";  // its first name
  // Sections of a head take positions of time, height and width. Those of a text token are equal: the rotation is the default.
  if (type == "mrope") type = "default";
  if (type == "default") return OkStatus();
  if (type == "dynamic") {  // begins beyond max_position_embeddings, whatever else stands here
    rope->scaling = RopeScaling::kDynamic;
    rope->original_max_position = config.max_position;
    COPPICE_RETURN_IF_ERROR(reader.Float("factor", &rope->factor));
    return rope->factor >= 1 ? OkStatus() : reader.Wrong("factor", "a number of at least 1");
  }
  if (type != "linear" && type != "llama3" && type != "yarn" && type != "longrope") {
    return Unimplemented(
        fmt::format("{}: RoPE type {} is not supported; supported are default, linear, dynamic, llama3, yarn, longrope",
                    reader.path(), Quoted(type)));
  }
  // The trained length; files have it beside "max_position_embeddings" (rope->original_max_position then), or here.
  const bool beside = rope->original_max_position > 0;
  const bool stated = beside || reader.Has("original_max_position_embeddings");
  if (!beside) {
    COPPICE_RETURN_IF_ERROR(reader.OptionalInt("original_max_position_embeddings", 1, &rope->original_max_position));
  }
  if (rope->original_max_position == 0) rope->original_max_position = config.max_position;
  const float ratio = static_cast<float>(config.max_position) / static_cast<float>(rope->original_max_position);
  if (type == "longrope") {  // a length beside "max_position_embeddings" overrides the factor
    rope->factor = ratio;
    if (!beside) COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("factor", &rope->factor));
  } else if (type == "yarn" && stated && !reader.Has("factor")) {
    rope->factor = ratio;
  } else {
    COPPICE_RETURN_IF_ERROR(reader.Float("factor", &rope->factor));
  }
  if (type == "yarn") return ReadYarn(reader, rope);
  if (type == "longrope") return ReadLongRope(reader, rope);
  rope->scaling = type == "linear" ? RopeScaling::kLinear : RopeScaling::kLlama3;
  if (rope->scaling == RopeScaling::kLinear) return OkStatus();
  if (!stated) return reader.Wrong("original_max_position_embeddings", "an integer in 1..2147483647");
  COPPICE_RETURN_IF_ERROR(reader.Float("low_freq_factor", &rope->low_freq_factor));
  return reader.Float("high_freq_factor", &rope->high_freq_factor);
}

}  // namespace

Status ReadRope(const ObjectReader& reader, const ConfigDefaults& defaults, ModelConfig* config) {
  float rotary_factor = defaults.rotary_factor;
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("partial_rotary_factor", &rotary_factor));
  const bool own_local = defaults.local_rope_theta > 0;
  RopeConfig& rope = config->rope;
  rope.theta = defaults.rope_theta;
  config->local_rope.theta = defaults.local_rope_theta;
  COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("rope_theta", &rope.theta));
  COPPICE_RETURN_IF_ERROR(reader.OptionalInt("original_max_position_embeddings", 1, &rope.original_max_position));
  if (own_local) COPPICE_RETURN_IF_ERROR(reader.OptionalFloat("rope_local_base_freq", &config->local_rope.theta));

  COPPICE_ASSIGN_OR_RETURN(const std::optional<ObjectReader> parameters, reader.Object("rope_parameters"));
  COPPICE_ASSIGN_OR_RETURN(const std::optional<ObjectReader> scaling, reader.Object("rope_scaling"));
  const bool by_layer = parameters && (parameters->Has("full_attention") || parameters->Has("sliding_attention"));
  // As in transformers, rope_scaling replaces rope_parameters with all that it holds, theta included, unless it is empty. In a
  // family whose local layers have their own rotation, it is merged into the parameters of the other layers.
  const bool has_scaling = scaling && !scaling->json().empty();
  if (by_layer && (own_local || !has_scaling)) {
    COPPICE_ASSIGN_OR_RETURN(const std::optional<ObjectReader> full, parameters->Object("full_attention"));
    COPPICE_ASSIGN_OR_RETURN(const std::optional<ObjectReader> sliding, parameters->Object("sliding_attention"));
    ObjectReader::Json merged = full ? full->json() : ObjectReader::Json::object();
    if (has_scaling) merged.update(scaling->json());
    const ObjectReader of_full(merged, (has_scaling ? scaling : full ? full : parameters)->path());
    COPPICE_RETURN_IF_ERROR(ReadParameters(of_full, *config, &rope, &rotary_factor));
    if (!own_local) config->local_rope = {.theta = defaults.rope_theta};
    if (sliding) COPPICE_RETURN_IF_ERROR(ReadParameters(*sliding, *config, &config->local_rope, &rotary_factor));
  } else {
    if (has_scaling) {
      COPPICE_RETURN_IF_ERROR(ReadParameters(*scaling, *config, &rope, &rotary_factor));
    } else if (parameters) {
      COPPICE_RETURN_IF_ERROR(ReadParameters(*parameters, *config, &rope, &rotary_factor));
    }
    if (!own_local) config->local_rope = rope;
  }
  if (!(rotary_factor > 0 && rotary_factor <= 1)) return reader.Wrong("partial_rotary_factor", "a number above 0, at most 1");
  config->rotary_dim = static_cast<int32_t>(static_cast<float>(config->head_dim) * rotary_factor);
  return OkStatus();
}

}  // namespace coppice
