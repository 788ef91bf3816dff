#include "model/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "model/rope.h"
#include "tests/support/tiny_model.h"
#include "tests/support/work_growth.h"

namespace coppice {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Base() { return Json::parse(testing::ToConfigJson(testing::TinyConfig())); }

// `base` with keys changed or added.
Json With(const Json& changes, Json base = Base()) {
  base.update(changes);
  return base;
}

Result<ModelConfig> Parse(const Json& config, const std::string& generation = "") {
  return ParseHuggingFaceConfig({"config.json", config.dump()}, {"generation_config.json", generation});
}

std::string Message(const Json& config, const std::string& generation = "") {
  const Result<ModelConfig> parsed = Parse(config, generation);
  EXPECT_FALSE(parsed.ok()) << config.dump();
  return parsed.status().message();
}

TEST(HfConfigTest, Sizes) {
  const ModelConfig config = Parse(Base()).value();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.hidden_size, 32);
  EXPECT_EQ(config.intermediate_size, 48);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_qo_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.vocab_size, 40);
  EXPECT_EQ(config.max_position, 128);
  EXPECT_EQ(config.norm_eps, 1e-5f);
  EXPECT_FALSE(config.tie_embeddings || config.blocks.qkv_bias || config.blocks.attention_bias || config.blocks.mlp_bias ||
               config.blocks.qk_norm);

  Json old = Base();  // keys that older files lack
  old.erase("head_dim");
  old.erase("num_key_value_heads");
  old.erase("rope_theta");
  const ModelConfig defaults = Parse(old).value();
  EXPECT_EQ(defaults.head_dim, 8);
  EXPECT_EQ(defaults.num_kv_heads, 4);
  EXPECT_EQ(defaults.rope.theta, 10000.0f);
  old["num_attention_heads"] = 5;
  EXPECT_THAT(Message(old), HasSubstr("\"hidden_size\" 32 is not a multiple of \"num_attention_heads\" 5"));
  EXPECT_EQ(Parse(With({{"head_dim", nullptr}})).value().head_dim, 8);
}

TEST(HfConfigTest, Families) {
  EXPECT_TRUE(Parse(With({{"architectures", {"Qwen2ForCausalLM"}}})).value().blocks.qkv_bias);
  EXPECT_FALSE(Parse(With({{"architectures", {"Qwen2ForCausalLM"}}})).value().blocks.attention_bias);
  EXPECT_TRUE(Parse(With({{"architectures", {"Qwen3ForCausalLM"}}})).value().blocks.qk_norm);
  const ModelConfig biased = Parse(With({{"attention_bias", true}, {"mlp_bias", true}, {"tie_word_embeddings", true}})).value();
  EXPECT_TRUE(biased.blocks.qkv_bias && biased.blocks.attention_bias && biased.blocks.mlp_bias && biased.tie_embeddings);
  EXPECT_THAT(Message(With({{"architectures", {"GPT2LMHeadModel"}}})),
              HasSubstr("architecture \"GPT2LMHeadModel\" is not supported; supported are LlamaForCausalLM, Mistral"));
  EXPECT_THAT(Message(With({{"architectures", Json::array()}})),
              HasSubstr("\"architectures\" is array, expected a list of one name"));
}

TEST(HfConfigTest, ModelTypeNamesTheFamilyWithoutArchitectures) {
  Json json = With({{"architectures", nullptr}});
  EXPECT_THAT(Message(json), HasSubstr("\"architectures\" is missing, expected a list of one name"));
  for (const auto& [type, architecture] : std::map<std::string, std::string>{{"llama", "llama"},
                                                                             {"mistral", "mistral"},
                                                                             {"qwen2", "qwen2"},
                                                                             {"qwen3", "qwen3"},
                                                                             {"phi", "phi2"},
                                                                             {"gemma3_text", "gemma3"}}) {
    json["model_type"] = type;
    const Result<ModelConfig> config = Parse(json);
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    EXPECT_EQ(config->architecture, architecture);
  }
  json.erase("architectures");
  json["model_type"] = "qwen2_vl";
  EXPECT_THAT(Message(json), HasSubstr("model type \"qwen2_vl\" is not supported; supported are llama, mistral"));
  // Where both stand, "architectures" decides.
  EXPECT_THAT(Message(With({{"model_type", "llama"}, {"architectures", {"LlamaForSequenceClassification"}}})),
              HasSubstr("architecture \"LlamaForSequenceClassification\" is not supported"));
}

TEST(HfConfigTest, MaxPositionDefaultsToThatOfTheFamily) {
  const std::map<std::string, int32_t> defaults = {{"llama", 2048},  {"mistral", 131072}, {"qwen2", 32768},
                                                   {"qwen3", 32768}, {"phi", 2048},       {"gemma3_text", 131072}};
  for (const auto& [type, length] : defaults) {
    Json json = With({{"model_type", type}, {"architectures", nullptr}});
    json.erase("max_position_embeddings");
    EXPECT_EQ(Parse(json).value().max_position, length) << type;
  }
}

TEST(HfConfigTest, RopeInBothSpellings) {
  const Json llama3 = {
      {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 256}};
  const std::vector<Json> spellings = {
      With({{"rope_theta", 500000.0}, {"rope_scaling", With({{"rope_type", "llama3"}}, llama3)}}),
      With({{"rope_theta", 500000}, {"rope_scaling", With({{"type", "llama3"}}, llama3)}}),
      With({{"rope_parameters", With({{"rope_type", "llama3"}, {"rope_theta", 500000.0}}, llama3)}}),
      With({{"rope_theta", 500000.0}, {"rope_parameters", With({{"rope_type", "llama3"}}, llama3)}, {"rope_scaling", nullptr}}),
  };
  for (const Json& json : spellings) {
    const Result<ModelConfig> config = Parse(json);
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    const RopeConfig& rope = config->rope;
    EXPECT_EQ(rope.theta, 500000.0f);
    EXPECT_EQ(rope.scaling, RopeScaling::kLlama3);
    EXPECT_EQ(rope.factor, 8.0f);
    EXPECT_EQ(rope.low_freq_factor, 1.0f);
    EXPECT_EQ(rope.high_freq_factor, 4.0f);
    EXPECT_EQ(rope.original_max_position, 256);
  }
  const RopeConfig linear = Parse(With({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}})).value().rope;
  EXPECT_EQ(linear.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear.factor, 2.0f);
  EXPECT_EQ(Parse(With({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.0}}}})).value().rope.theta, 7.0f);

  EXPECT_THAT(Message(With({{"rope_scaling", {{"rope_type", "ntk"}, {"factor", 2.0}}}})),
              HasSubstr("RoPE type \"ntk\" is not supported; supported are default, linear, dynamic, llama3, yarn, longrope"));
  EXPECT_THAT(Message(With({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}, {"warp", 1}}}})),
              HasSubstr("\"warp\" \"1\" is not supported"));
  EXPECT_THAT(Message(With({{"rope_scaling", {{"type", "linear"}}}})), HasSubstr("\"rope_scaling\": \"factor\" is missing"));
  EXPECT_THAT(Message(With({{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}})), HasSubstr("factor 0 must be positive"));
  EXPECT_THAT(Message(With({{"rope_scaling", 3}})), HasSubstr("\"rope_scaling\" is \"3\", expected an object"));
  EXPECT_THAT(Message(With({{"partial_rotary_factor", 1.5}})), HasSubstr("\"partial_rotary_factor\" is \"1.5\""));
  EXPECT_THAT(Message(With({{"rope_theta", -1}})), HasSubstr("RoPE base -1 must be positive"));
}

// Frequencies are those of transformers 5.24 (LlamaRotaryEmbedding), head_dim 16.
TEST(HfConfigTest, RopeScalingReplacesRopeParameters) {
  const Json base = With({{"head_dim", 16}, {"max_position_embeddings", 256}, {"rope_theta", nullptr}});
  const auto frequencies = [&](const Json& changes) {
    const ModelConfig config = Parse(With(changes, base)).value();
    return InverseFrequencies(config.rope, config.rotary_dim, config.max_position);
  };
  const auto near = [](float value) { return FloatNear(value, 1e-7f); };
  const Json parameters = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  const Json linear = {{"type", "linear"}, {"factor", 2.0}};
  // The theta of rope_parameters does not count either: 10,000 if none stands beside them.
  EXPECT_THAT(frequencies({{"rope_scaling", linear}, {"rope_parameters", parameters}}),
              ElementsAre(near(0.5f), near(0.15811388f), near(0.05f), near(0.01581139f), near(0.005f), near(0.00158114f),
                          near(0.0005f), near(0.00015811f)));
  EXPECT_THAT(frequencies({{"rope_scaling", linear}, {"rope_parameters", parameters}, {"rope_theta", 7e4}}),
              ElementsAre(near(0.5f), near(0.12397461f), near(0.03073941f), near(0.00762181f), near(0.00188982f), near(0.00046858f),
                          near(0.00011618f), near(2.881e-05f)));
  const Json yarn = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  EXPECT_THAT(frequencies({{"rope_scaling", yarn}, {"rope_parameters", parameters}}),
              ElementsAre(near(1), near(0.23717082f), near(0.05f), near(0.00790569f), near(0.0025f), near(0.00079057f),
                          near(0.00025f), near(7.906e-05f)));
  // An original length beside the sizes comes before that of the parameters.
  EXPECT_THAT(frequencies({{"rope_scaling", yarn}, {"original_max_position_embeddings", 32}}),
              ElementsAre(near(1), near(0.19764236f), near(0.025f), near(0.00790569f), near(0.0025f), near(0.00079057f),
                          near(0.00025f), near(7.906e-05f)));
  // Empty is absent.
  EXPECT_THAT(frequencies({{"rope_scaling", Json::object()},
                           {"rope_parameters", With({{"rope_type", "linear"}, {"factor", 4.0}}, parameters)}}),
              ElementsAre(near(0.25f), near(0.04848069f), near(0.00940151f), near(0.00182317f), near(0.00035355f), near(6.856e-05f),
                          near(1.33e-05f), near(2.58e-06f)));
}

TEST(HfConfigTest, SectionsOfRopeDoNotChangeText) {
  const Json qwen = With({{"architectures", {"Qwen2ForCausalLM"}}});
  for (const Json& scaling : {Json{{"type", "mrope"}, {"mrope_section", {2, 3, 3}}},
                              Json{{"type", "mrope"}, {"rope_type", "default"}, {"mrope_section", {2, 3, 3}}}}) {
    EXPECT_EQ(Parse(With({{"rope_scaling", scaling}}, qwen)).value().rope.scaling, RopeScaling::kNone);
  }
  EXPECT_THAT(Message(With({{"architectures", {"Qwen2VLForConditionalGeneration"}}}, qwen)),
              HasSubstr("\"Qwen2VLForConditionalGeneration\" is not supported"));
}

TEST(HfConfigTest, ScaledRopeLengthensTheContext) {
  const auto parse = [](const Json& scaling, const Json& changes = Json::object()) {
    return Parse(With({{"rope_scaling", scaling}}, With(changes))).value();
  };
  const int32_t stated = testing::TinyConfig().max_position;
  // Qwen2.5's recipe. Its attention factor is that of transformers: 0.1 ln(factor) + 1; the context is `factor` original lengths.
  const ModelConfig yarn = parse({{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", stated}});
  EXPECT_EQ(yarn.max_position, 4 * stated);
  EXPECT_EQ(yarn.longest_context(), 4 * stated);
  EXPECT_EQ(yarn.rope.original_max_position, stated);
  EXPECT_FLOAT_EQ(yarn.rope.attention_factor, static_cast<float>(0.1 * std::log(4.0) + 1));
  EXPECT_EQ(parse({{"type", "yarn"}, {"factor", 4.0}}).max_position, 4 * stated);
  EXPECT_EQ(parse({{"type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 32}}).max_position, stated);
  EXPECT_EQ(parse({{"type", "yarn"}, {"factor", 2.3}}, {{"max_position_embeddings", 10000}}).max_position, 23000);
  EXPECT_EQ(parse({{"type", "yarn"}, {"factor", 1e9}}).max_position, INT32_MAX);

  // Whether max_position_embeddings has the factor in it is not said, so that more must be asked for.
  const ModelConfig linear = parse({{"type", "linear"}, {"factor", 4.0}});
  EXPECT_EQ(linear.max_position, stated);
  EXPECT_EQ(linear.longest_context(), 4 * stated);
  EXPECT_EQ(parse({{"type", "linear"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}}).longest_context(), stated);

  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", stated}};
  EXPECT_EQ(parse(llama3).longest_context(), stated);
  const Json longrope = {{"type", "longrope"}, {"factor", 4.0}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {1, 2, 4, 8}}};
  EXPECT_EQ(parse(longrope).longest_context(), stated);
}

TEST(HfConfigTest, SlidingWindow) {
  EXPECT_EQ(Parse(With({{"architectures", {"MistralForCausalLM"}}, {"sliding_window", 24}})).value().window, 24);
  EXPECT_EQ(Parse(With({{"architectures", {"MistralForCausalLM"}}, {"sliding_window", nullptr}})).value().window, 0);
  const Json qwen = With({{"architectures", {"Qwen2ForCausalLM"}}, {"sliding_window", 24}, {"use_sliding_window", false}});
  EXPECT_EQ(Parse(qwen).value().window, 0);
  EXPECT_EQ(Parse(With({{"use_sliding_window", true}, {"max_window_layers", 0}}, qwen)).value().window, 24);
  EXPECT_EQ(Parse(With({{"use_sliding_window", true}, {"max_window_layers", 28}}, qwen)).value().window, 0);
  const ModelConfig half = Parse(With({{"use_sliding_window", true}, {"max_window_layers", 1}}, qwen)).value();
  EXPECT_THAT(half.local_layers, ElementsAre(false, true));
  EXPECT_EQ(half.window, 0);
  EXPECT_EQ(half.local_window, 24);
  EXPECT_EQ(half.local_rope.theta, half.rope.theta);
  const Json layered = With({{"architectures", {"MistralForCausalLM"}}, {"sliding_window", 24}});
  EXPECT_EQ(Parse(With({{"layer_types", {"sliding_attention", "sliding_attention"}}}, layered)).value().window, 24);
  EXPECT_EQ(Parse(With({{"layer_types", {"full_attention", "full_attention"}}}, layered)).value().window, 0);
  EXPECT_THAT(Parse(With({{"layer_types", {"sliding_attention", "full_attention"}}}, layered)).value().local_layers,
              ElementsAre(true, false));
  EXPECT_THAT(Message(With({{"layer_types", {"full_attention", "mamba"}}}, layered)), HasSubstr("expected 2 entries"));
  // Absent is not null: Mistral's files before version 0.2 leave the window to the family.
  EXPECT_EQ(Parse(With({{"architectures", {"MistralForCausalLM"}}})).value().window, 4096);
  EXPECT_EQ(Parse(With({{"sliding_window", 24}})).value().window, 0);  // Llama has none, whatever its file says
}

TEST(HfConfigTest, ScaledRope) {
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  const RopeConfig plain = Parse(With({{"rope_scaling", yarn}})).value().rope;
  EXPECT_EQ(plain.scaling, RopeScaling::kYarn);
  EXPECT_FLOAT_EQ(plain.attention_factor, static_cast<float>(0.1 * std::log(4.0) + 1));
  EXPECT_EQ(plain.beta_fast, 32);
  const Json scales = {{"mscale", 0.707}, {"mscale_all_dim", 1.0}, {"beta_fast", 16}, {"truncate", false}};
  const RopeConfig scaled = Parse(With({{"rope_scaling", With(scales, yarn)}})).value().rope;
  EXPECT_FLOAT_EQ(scaled.attention_factor, static_cast<float>((0.0707 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1)));
  EXPECT_EQ(scaled.beta_fast, 16);
  EXPECT_FALSE(scaled.truncate);
  EXPECT_EQ(Parse(With({{"rope_scaling", With({{"attention_factor", 1.5}}, yarn)}})).value().rope.attention_factor, 1.5f);

  // Phi-3's spelling: the original length stands beside the other sizes, and the factor follows from the two.
  const Json longrope = {{"type", "longrope"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {1, 2, 4, 8}}};
  const Json phi3 = With({{"rope_scaling", longrope}, {"original_max_position_embeddings", 32}});
  const RopeConfig rope = Parse(phi3).value().rope;
  EXPECT_EQ(rope.original_max_position, 32);
  EXPECT_THAT(rope.long_divisors, ElementsAre(1, 2, 4, 8));
  EXPECT_FLOAT_EQ(rope.attention_factor, static_cast<float>(std::sqrt(1 + std::log(4.0) / std::log(32.0))));
  EXPECT_THAT(Message(With({{"rope_scaling", With({{"long_factor", {1, 2}}}, longrope)}}, phi3)),
              HasSubstr("2 RoPE frequency divisors, expected 4"));
  EXPECT_THAT(Message(With({{"rope_scaling", With({{"long_factor", "x"}}, longrope)}}, phi3)), HasSubstr("a list of numbers"));
  // Dynamic scaling lengthens the context that may be asked for.
  const ModelConfig dynamic = Parse(With({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.5}}}})).value();
  EXPECT_EQ(dynamic.rope.scaling, RopeScaling::kDynamic);
  EXPECT_EQ(dynamic.rope.original_max_position, dynamic.max_position);
  EXPECT_EQ(dynamic.longest_context(), dynamic.max_position * 5 / 2);
  EXPECT_THAT(Message(With({{"rope_scaling", {{"type", "dynamic"}}}})), HasSubstr("factor"));
  EXPECT_THAT(Message(With({{"rope_scaling", {{"type", "dynamic"}, {"factor", 0.5}}}})), HasSubstr("a number of at least 1"));
  EXPECT_EQ(Parse(With({{"partial_rotary_factor", 0.5}})).value().rotary_dim, 4);
}

TEST(HfConfigTest, Gemma3InOldAndNewSpelling) {
  const Json base = With({{"architectures", {"Gemma3ForCausalLM"}}, {"sliding_window", 16}, {"query_pre_attn_scalar", 64}});
  Json old = With({{"rope_theta", 1e6}, {"rope_local_base_freq", 5e3}, {"sliding_window_pattern", 2}}, base);
  old["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const Json now = With({{"layer_types", {"sliding_attention", "full_attention"}},
                         {"rope_parameters",
                          {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                           {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5e3}}}}}},
                        base);
  for (const Json& json : {old, now}) {
    const Result<ModelConfig> config = Parse(json);
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    EXPECT_THAT(config->local_layers, ElementsAre(true, false));
    EXPECT_EQ(config->local_window, 16);
    EXPECT_EQ(config->rope.theta, 1e6f);
    EXPECT_EQ(config->rope.factor, 8.0f);
    EXPECT_EQ(config->local_rope.theta, 5e3f);
    EXPECT_EQ(config->local_rope.scaling, RopeScaling::kNone);
    EXPECT_EQ(config->sm_scale, 0.125f);
    EXPECT_FLOAT_EQ(config->embedding_scale, std::sqrt(32.0f));
  }
  // transformers merges rope_scaling into the parameters of global layers.
  const ModelConfig both = Parse(With({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}}}, now)).value();
  EXPECT_EQ(both.rope.factor, 4.0f);
  EXPECT_EQ(both.rope.theta, 1e6f);
  EXPECT_EQ(both.local_rope.theta, 5e3f);
  // The context length of a file has the factor in it.
  EXPECT_EQ(both.longest_context(), both.max_position);
  EXPECT_THAT(Message(With({{"final_logit_softcapping", 30.0}}, base)),
              HasSubstr("\"final_logit_softcapping\" \"30.0\" is not supported"));
  EXPECT_THAT(Message(With({{"use_bidirectional_attention", true}}, base)), HasSubstr("\"use_bidirectional_attention\""));
}

TEST(HfConfigTest, TextModelOfGemma3) {
  // As in gemma-3-4b-it: what text_config leaves out is that of Gemma3TextConfig.
  const Json text = {{"hidden_size", 2560},     {"intermediate_size", 10240},
                     {"num_hidden_layers", 34}, {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                     {"sliding_window", 1024},  {"model_type", "gemma3_text"}};
  const Json whole = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                      {"model_type", "gemma3"},
                      {"eos_token_id", {1, 106}},
                      {"text_config", text},
                      {"vision_config", {{"hidden_size", 1152}, {"num_hidden_layers", 27}}}};
  for (const Json& json : {whole, With({{"architectures", nullptr}}, whole)}) {
    const Result<ModelConfig> config = Parse(json);
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    EXPECT_EQ(config->architecture, "gemma3");
    EXPECT_EQ(config->hidden_size, 2560);
    EXPECT_EQ(config->num_layers, 34);
    EXPECT_EQ(config->num_qo_heads, 8);
    EXPECT_EQ(config->num_kv_heads, 4);
    EXPECT_EQ(config->head_dim, 256);
    EXPECT_EQ(config->vocab_size, 262208);
    EXPECT_EQ(config->max_position, 131072);
    EXPECT_EQ(config->longest_context(), 131072);
    EXPECT_EQ(config->local_window, 1024);
    EXPECT_EQ(config->rope.factor, 8.0f);
    EXPECT_EQ(config->rope.theta, 1e6f);
    EXPECT_EQ(config->local_rope.theta, 1e4f);
    EXPECT_TRUE(config->tie_embeddings);
    EXPECT_THAT(config->eos_token_ids, ElementsAre(1, 106));
  }
  Json bare = whole;
  bare["text_config"] = Json::object();
  const ModelConfig defaults = Parse(bare).value();
  EXPECT_EQ(defaults.hidden_size, 2304);
  EXPECT_EQ(defaults.intermediate_size, 9216);
  EXPECT_EQ(defaults.num_layers, 26);
  bare["text_config"] = {{"hidden_size", "x"}};
  EXPECT_THAT(Message(bare), HasSubstr("config.json: \"text_config\": \"hidden_size\" is \"x\""));
  bare.erase("text_config");
  EXPECT_THAT(Message(bare), HasSubstr("\"text_config\" is missing, expected an object"));
  EXPECT_THAT(Message(With({{"quantization_config", {{"bits", 4}}}}, whole)), HasSubstr("quantised safetensors"));
}

TEST(HfConfigTest, TokenIds) {
  EXPECT_THAT(Parse(With({{"bos_token_id", 1}, {"eos_token_id", 2}})).value().eos_token_ids, ElementsAre(2));
  EXPECT_THAT(Parse(With({{"eos_token_id", {2, 3}}})).value().eos_token_ids, ElementsAre(2, 3));
  // generation_config.json decides where it says anything.
  EXPECT_THAT(Parse(With({{"eos_token_id", 2}}), R"({"eos_token_id": [4, 5]})").value().eos_token_ids, ElementsAre(4, 5));
  EXPECT_THAT(Parse(With({{"eos_token_id", 2}}), R"({"eos_token_id": null})").value().eos_token_ids, ElementsAre(2));
  EXPECT_EQ(Parse(With({{"bos_token_id", nullptr}})).value().bos_token_id, -1);
  // Ids that no token has are ignored.
  const ModelConfig outside = Parse(With({{"eos_token_id", {-1, 39, 40, UINT64_MAX}}, {"bos_token_id", -1}})).value();
  EXPECT_THAT(outside.eos_token_ids, ElementsAre(39));
  EXPECT_EQ(outside.bos_token_id, -1);
  EXPECT_THAT(Parse(With({{"eos_token_id", 2}}), R"({"eos_token_id": -1})").value().eos_token_ids, ElementsAre(2));
  EXPECT_THAT(Parse(With({{"eos_token_id", 40}, {"pad_token_id", 40}})).value().eos_token_ids, ElementsAre());
  EXPECT_THAT(Message(Base(), R"({"eos_token_id": "x"})"), HasSubstr("generation_config.json: \"eos_token_id\" is \"x\""));
  EXPECT_THAT(Message(Base(), "{"), HasSubstr("generation_config.json: not valid JSON"));
}

TEST(HfConfigTest, RefusesByKey) {
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    Json without = Base();
    without.erase(key);
    if (std::string_view(key) != "max_position_embeddings") {
      EXPECT_THAT(Message(without), HasSubstr(std::string("\"") + key + "\" is missing, expected an integer"));
    }
    for (const Json& bad : {Json(0), Json(-1), Json(2.5), Json("2"), Json(4294967296u), Json(UINT64_MAX)}) {
      EXPECT_THAT(Message(With({{key, bad}})), HasSubstr(std::string("\"") + key + "\" is "));
    }
  }
  EXPECT_THAT(Message(With({{"num_key_value_heads", 3}})), HasSubstr("4 query heads are not a multiple of 3 key/value heads"));
  EXPECT_THAT(Message(With({{"head_dim", 9}})), HasSubstr("head dimension 9 is not supported, expected an even number up to 256"));
  EXPECT_THAT(Message(With({{"head_dim", 258}})), HasSubstr("head dimension 258"));
  EXPECT_THAT(Message(With({{"rms_norm_eps", 0}})), HasSubstr("epsilon 0 must be positive"));
  EXPECT_THAT(Message(With({{"rms_norm_eps", "x"}})), HasSubstr("\"rms_norm_eps\" is \"x\", expected a number"));
  EXPECT_THAT(Message(With({{"tie_word_embeddings", 1}})), HasSubstr("expected true or false"));
  EXPECT_THAT(Message(With({{"hidden_act", "relu"}})), HasSubstr("\"hidden_act\" \"relu\" is not supported, expected one of silu"));
  EXPECT_THAT(Message(With({{"residual_multiplier", 0.2}})), HasSubstr("\"residual_multiplier\" \"0.2\" is not supported"));
  EXPECT_THAT(Message(With({{"quantization_config", {{"bits", 4}}}})), HasSubstr("quantised safetensors are not supported"));
}

TEST(HfConfigTest, WorkIsProportionalToTheFile) {
  const auto config_of = [](int count) {
    Json config = With({{"vocab_size", 1 << 20}});
    for (int i = 0; i < count; ++i) {
      config["labels"][std::to_string(i)] = {{"name", "x"}};
      config["list"].push_back({{"name", "x"}});
      config["eos_token_id"].push_back(i);
    }
    return config.dump();
  };
  const auto parse = [](const std::string& text) {
    EXPECT_TRUE(ParseHuggingFaceConfig({"config.json", text}, {"generation_config.json", ""}).ok());
  };
  EXPECT_LT(testing::WorkGrowth(1000, config_of, parse), testing::kMaxProportionalGrowth);
}

}  // namespace
}  // namespace coppice
