#include "model/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/tiny_model.h"
#include "tests/support/work_growth.h"

namespace coppice {
namespace {

using ::testing::ElementsAre;
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
  EXPECT_THAT(Message(With({{"final_logit_softcapping", 30.0}}, base)),
              HasSubstr("\"final_logit_softcapping\" \"30.0\" is not supported"));
  EXPECT_THAT(Message(With({{"use_bidirectional_attention", true}}, base)), HasSubstr("\"use_bidirectional_attention\""));
}

TEST(HfConfigTest, TokenIds) {
  EXPECT_THAT(Parse(With({{"bos_token_id", 1}, {"eos_token_id", 2}})).value().eos_token_ids, ElementsAre(2));
  EXPECT_THAT(Parse(With({{"eos_token_id", {2, 3}}})).value().eos_token_ids, ElementsAre(2, 3));
  // generation_config.json decides where it says anything.
  EXPECT_THAT(Parse(With({{"eos_token_id", 2}}), R"({"eos_token_id": [4, 5]})").value().eos_token_ids, ElementsAre(4, 5));
  EXPECT_THAT(Parse(With({{"eos_token_id", 2}}), R"({"eos_token_id": null})").value().eos_token_ids, ElementsAre(2));
  EXPECT_EQ(Parse(With({{"bos_token_id", nullptr}})).value().bos_token_id, -1);
  EXPECT_THAT(Message(With({{"eos_token_id", 40}})), HasSubstr("\"eos_token_id\" is \"40\", expected token ids in 0..39"));
  EXPECT_THAT(Message(Base(), R"({"eos_token_id": "x"})"), HasSubstr("generation_config.json: \"eos_token_id\" is \"x\""));
  EXPECT_THAT(Message(Base(), "{"), HasSubstr("generation_config.json: not valid JSON"));
}

TEST(HfConfigTest, RefusesByKey) {
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    Json without = Base();
    without.erase(key);
    EXPECT_THAT(Message(without), HasSubstr(std::string("\"") + key + "\" is missing, expected an integer"));
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
