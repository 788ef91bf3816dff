#include "model/gguf_model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "model/families/family.h"
#include "tests/support/tiny_model.h"
#include "tokenizer/tokenizer.h"

namespace coppice {
namespace {

using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::RandomModel;
using testing::Raw;
using testing::TemporaryFolder;
using testing::TinyConfig;
using testing::TinyModel;
using testing::ToGguf;

// Contents together with the bytes they view.
struct Read {
  explicit Read(const GgufWriter& writer) : bytes(writer.Bytes()) {
    const Result<GgufDirectory> gguf = GgufDirectory::Parse(std::as_bytes(std::span(bytes)), "f.gguf");
    EXPECT_TRUE(gguf.ok()) << gguf.status().ToString();
    contents = ReadGgufModel(*gguf);
  }
  std::string message() const { return contents.ok() ? "" : contents.status().message(); }

  std::string bytes;
  Result<ModelContents> contents = Internal("not read");
};

void ExpectWeightsEqual(const ModelContents& contents, const TinyModel& model) {
  ASSERT_EQ(contents.tensors.size(), model.weights.size());
  for (const auto& [name, expected] : model.weights) {
    const StoredTensor& tensor = contents.tensors.at(name);
    const int64_t rows = tensor.shape.size() == 1 ? 1 : tensor.shape[0];
    std::vector<float> values(expected.size());
    const Status status =
        LoadWeight(name, tensor, rows, tensor.shape.back(), DType::kF32, std::as_writable_bytes(std::span(values)));
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(values, expected) << name;
  }
}

TEST(GgufModelTest, GivesConfigAndHuggingFaceWeights) {
  ModelConfig config = TinyConfig();
  config.rope.theta = 50000.0f;
  config.norm_eps = 1e-6f;
  for (const int32_t kv_heads : {1, 2, 4}) {  // MQA, GQA, MHA: q and k have row permutations of their own
    config.num_kv_heads = kv_heads;
    for (const bool tied : {false, true}) {
      config.tie_embeddings = tied;
      const TinyModel model = RandomModel(config, 5);
      const Read read(ToGguf(model));
      ASSERT_TRUE(read.contents.ok()) << read.message();
      const ModelConfig& found = read.contents->config;
      EXPECT_EQ(found.architecture, "llama");
      EXPECT_EQ(found.hidden_size, 32);
      EXPECT_EQ(found.intermediate_size, 48);
      EXPECT_EQ(found.num_layers, 2);
      EXPECT_EQ(found.num_qo_heads, 4);
      EXPECT_EQ(found.num_kv_heads, kv_heads);
      EXPECT_EQ(found.head_dim, 8);
      EXPECT_EQ(found.vocab_size, 40);
      EXPECT_EQ(found.max_position, 128);
      EXPECT_EQ(found.norm_eps, 1e-6f);
      EXPECT_EQ(found.rope.theta, 50000.0f);
      EXPECT_EQ(found.tie_embeddings, tied);
      EXPECT_FALSE(read.contents->tokenizer.has_value());
      ExpectWeightsEqual(*read.contents, model);
    }
  }
}

TEST(GgufModelTest, BiasesAndNormsShowInTheTensors) {
  ModelConfig config = TinyConfig();
  config.blocks.qkv_bias = config.blocks.attention_bias = config.blocks.mlp_bias = true;
  const TinyModel biased = RandomModel(config, 6);  // llama: the biases of q and k are permuted too
  const Read read(ToGguf(biased));
  ASSERT_TRUE(read.contents.ok()) << read.message();
  EXPECT_TRUE(read.contents->config.blocks.qkv_bias && read.contents->config.blocks.attention_bias &&
              read.contents->config.blocks.mlp_bias);
  ExpectWeightsEqual(*read.contents, biased);

  config = TinyConfig();
  config.architecture = "qwen3";  // rows are not permuted
  config.blocks.qk_norm = true;
  const TinyModel qwen3 = RandomModel(config, 7);
  const Read read_qwen3(ToGguf(qwen3));
  ASSERT_TRUE(read_qwen3.contents.ok()) << read_qwen3.message();
  EXPECT_TRUE(read_qwen3.contents->config.blocks.qk_norm);
  ExpectWeightsEqual(*read_qwen3.contents, qwen3);
}

TEST(GgufModelTest, Phi2FusedOrNot) {
  ModelConfig config = TinyConfig();
  config.architecture = "phi2";
  config.blocks = FamilyNamed("phi2").blocks;
  config.num_kv_heads = config.num_qo_heads;
  config.rotary_dim = 4;
  for (const QkvLayout layout : {QkvLayout::kSeparate, QkvLayout::kFused}) {
    config.blocks.qkv = layout;
    const TinyModel model = RandomModel(config, 20);
    const Read read(ToGguf(model));
    ASSERT_TRUE(read.contents.ok()) << read.message();
    const ModelConfig& found = read.contents->config;
    EXPECT_EQ(found.blocks.qkv, layout);
    EXPECT_TRUE(found.blocks.parallel && found.blocks.lm_head_bias && found.blocks.qkv_bias && found.blocks.mlp_bias);
    EXPECT_EQ(found.rotary_dim, 4);
    ExpectWeightsEqual(*read.contents, model);
  }
}

TEST(GgufModelTest, StarCoderHasLearnedPositionsAndOneKvHead) {
  ModelConfig config = TinyConfig();
  config.architecture = "starcoder";
  config.blocks = FamilyNamed("starcoder").blocks;
  config.num_kv_heads = 1;
  const TinyModel model = RandomModel(config, 21);
  const Read read(ToGguf(model));
  ASSERT_TRUE(read.contents.ok()) << read.message();
  EXPECT_EQ(read.contents->config.num_kv_heads, 1);
  EXPECT_EQ(read.contents->config.rotated(), 0);
  EXPECT_TRUE(read.contents->config.blocks.learned_positions);
  ExpectWeightsEqual(*read.contents, model);
}

TEST(GgufModelTest, Gemma3LeavesItsPatternToTheReader) {
  ModelConfig config = TinyConfig();
  config.architecture = "gemma3";
  config.blocks = FamilyNamed("gemma3").blocks;
  config.num_layers = 7;
  config.rope.theta = 1e6f;
  config.tie_embeddings = true;
  const TinyModel model = RandomModel(config, 22);
  const Read read(ToGguf(model).U32("gemma3.attention.sliding_window", 16));
  ASSERT_TRUE(read.contents.ok()) << read.message();
  const ModelConfig& found = read.contents->config;
  EXPECT_THAT(found.local_layers, ElementsAre(true, true, true, true, true, false, true));
  EXPECT_EQ(found.local_window, 16);
  EXPECT_EQ(found.window, 0);
  EXPECT_EQ(found.rope.theta, 1e6f);
  EXPECT_EQ(found.local_rope.theta, 1e4f);
  EXPECT_FALSE(found.blocks.unit_offset_norms);  // the file has 1 + weight
  EXPECT_FLOAT_EQ(found.embedding_scale, std::sqrt(32.0f));
  ExpectWeightsEqual(*read.contents, model);
}

TEST(GgufModelTest, RopeScaling) {
  const TinyModel model = RandomModel(TinyConfig(), 8);
  const Read linear(ToGguf(model).String("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4.0f));
  ASSERT_TRUE(linear.contents.ok()) << linear.message();
  EXPECT_EQ(linear.contents->config.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear.contents->config.rope.factor, 4.0f);

  const std::string factors = Raw(1.f) + Raw(1.5f) + Raw(4.f) + Raw(8.f);
  const Read llama3(ToGguf(model).Tensor("rope_freqs.weight", {4}, 0, factors));
  ASSERT_TRUE(llama3.contents.ok()) << llama3.message();
  EXPECT_EQ(llama3.contents->config.rope.scaling, RopeScaling::kNone);
  EXPECT_THAT(llama3.contents->config.rope.frequency_divisors, ElementsAre(1.f, 1.5f, 4.f, 8.f));

  EXPECT_THAT(Read(ToGguf(model).Tensor("rope_freqs.weight", {3}, 0, factors.substr(0, 12))).message(),
              HasSubstr("\"rope_freqs.weight\" has shape [3], expected [4]"));
  EXPECT_THAT(Read(ToGguf(model).Tensor("rope_freqs.weight", {4}, 0, std::string(16, '\0'))).message(),
              HasSubstr("divisor 0 is 0, expected a positive number"));
  const Read yarn(ToGguf(model)
                      .String("llama.rope.scaling.type", "yarn")
                      .F32("llama.rope.scaling.factor", 4.0f)
                      .U32("llama.rope.scaling.original_context_length", 32));
  ASSERT_TRUE(yarn.contents.ok()) << yarn.message();
  EXPECT_EQ(yarn.contents->config.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.contents->config.rope.original_max_position, 32);
  EXPECT_FLOAT_EQ(yarn.contents->config.rope.attention_factor, 1.1386294f);  // 0.1 ln 4 + 1
  // As llama.cpp reads them: a factor alone, under its old name or not, is of linear scaling, and 0 stands for none.
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    const Read alone(ToGguf(model).F32(key, 4.0f));
    ASSERT_TRUE(alone.contents.ok()) << alone.message();
    EXPECT_EQ(alone.contents->config.rope.scaling, RopeScaling::kLinear) << key;
    EXPECT_EQ(alone.contents->config.rope.factor, 4.0f) << key;
    for (const float factor : {0.0f, 1.0f}) {
      const Read without(ToGguf(model).F32(key, factor));
      ASSERT_TRUE(without.contents.ok()) << without.message();
      EXPECT_EQ(without.contents->config.rope.scaling, RopeScaling::kNone) << key;
      EXPECT_EQ(without.contents->config.rope.factor, 1.0f) << key;
    }
    EXPECT_THAT(Read(ToGguf(model).F32(key, -2.0f)).message(), HasSubstr("RoPE scaling factor -2 must be positive"));
    const Read none(ToGguf(model).String("llama.rope.scaling.type", "none").F32(key, 4.0f));
    ASSERT_TRUE(none.contents.ok()) << none.message();
    EXPECT_EQ(none.contents->config.rope.scaling, RopeScaling::kNone) << key;
    EXPECT_EQ(none.contents->config.rope.factor, 1.0f) << key;
  }
  const Read old(ToGguf(model).String("llama.rope.scaling.type", "linear").F32("llama.rope.scale_linear", 4.0f));
  ASSERT_TRUE(old.contents.ok()) << old.message();
  EXPECT_EQ(old.contents->config.rope.factor, 4.0f);
  const Read both(ToGguf(model).F32("llama.rope.scale_linear", 2.0f).F32("llama.rope.scaling.factor", 4.0f));
  ASSERT_TRUE(both.contents.ok()) << both.message();
  EXPECT_EQ(both.contents->config.rope.factor, 4.0f);
  EXPECT_THAT(Read(ToGguf(model).String("llama.rope.scaling.type", "longrope")).message(), HasSubstr("RoPE scaling \"longrope\""));
  EXPECT_THAT(Read(ToGguf(model).String("llama.rope.scaling.type", "linear")).message(),
              HasSubstr("\"llama.rope.scaling.factor\" is missing"));
}

GgufWriter WithTokens(const TinyModel& model, int32_t count, const std::vector<std::string>& merges = {}) {
  std::vector<std::string> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(fmt::format("t{}", i));
  return ToGguf(model)
      .String("tokenizer.ggml.model", "gpt2")
      .String("tokenizer.ggml.pre", "smollm")
      .Strings("tokenizer.ggml.tokens", tokens)
      .Strings("tokenizer.ggml.merges", merges);
}

// A tokenizer that cannot be read does not stop the model.
std::string TokenizerError(const GgufWriter& writer) {
  const Read read(writer);
  EXPECT_TRUE(read.contents.ok()) << read.message();
  EXPECT_FALSE(read.contents->tokenizer.has_value());
  return read.contents->tokenizer_status.message();
}

TEST(GgufModelTest, SentencePieceTokenizer) {
  const TinyModel model = RandomModel(TinyConfig(), 5);
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581ab"};
  std::vector<int32_t> types(40, 5);
  for (size_t i = 0; i < tokens.size(); ++i) types[i] = i == 0 ? 2 : i < 3 ? 3 : 1;
  for (size_t i = tokens.size(); i < 40; ++i) tokens.push_back(fmt::format("unused{}", i));
  std::vector<float> scores(40, -100);
  scores[6] = -1, scores[7] = -2;
  auto writer = ToGguf(model)
                    .String("tokenizer.ggml.model", "llama")
                    .Strings("tokenizer.ggml.tokens", tokens)
                    .I32s("tokenizer.ggml.token_type", types)
                    .U32("tokenizer.ggml.bos_token_id", 1)
                    .U32("tokenizer.ggml.eos_token_id", 2);
  EXPECT_THAT(TokenizerError(writer), HasSubstr("\"tokenizer.ggml.scores\" is missing, which the tokenizer needs"));
  const Read read(writer.F32s("tokenizer.ggml.scores", scores));
  ASSERT_TRUE(read.contents.ok()) << read.message();
  ASSERT_TRUE(read.contents->tokenizer_status.ok()) << read.contents->tokenizer_status.ToString();
  const auto tokenizer = CreateTokenizer(*read.contents->tokenizer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_THAT(*(*tokenizer)->Encode("ab abx"), ElementsAre(1, 7, 7, 0));
  EXPECT_EQ((*tokenizer)->Decode(std::vector<int32_t>{1, 7, 7}), "ab ab");
}

TEST(GgufModelTest, Tokenizer) {
  using Kind = TokenizerData::TokenKind;
  const TinyModel model = RandomModel(TinyConfig(), 9);
  std::vector<int32_t> types(40, 1);
  for (int32_t i = 0; i < 6; ++i) types[i] = i + 1;
  const Read read(WithTokens(model, 40, {"a b", "ab c"})
                      .I32s("tokenizer.ggml.token_type", types)
                      .U32("tokenizer.ggml.bos_token_id", 1)
                      .U32("tokenizer.ggml.eos_token_id", 2)
                      .U32("tokenizer.ggml.eot_token_id", 3)
                      .U32("tokenizer.ggml.unknown_token_id", 0)
                      .U32("tokenizer.ggml.padding_token_id", 39)
                      .Bool("tokenizer.ggml.add_bos_token", true)
                      .String("tokenizer.chat_template", "{{ messages }}")
                      .String("tokenizer.chat_template.tool_use", "{{ tools }}"));
  ASSERT_TRUE(read.contents.ok()) << read.message();
  const TokenizerData& data = read.contents->tokenizer.value();
  EXPECT_EQ(data.model, "bpe");
  EXPECT_EQ(data.pre_tokenizer, "smollm");
  EXPECT_EQ(data.tokens.size(), 40u);
  EXPECT_EQ(data.tokens[7], "t7");
  EXPECT_THAT(std::vector<Kind>(data.kinds.begin(), data.kinds.begin() + 7),
              ElementsAre(Kind::kNormal, Kind::kControl, Kind::kControl, Kind::kControl, Kind::kUnused, Kind::kByte, Kind::kNormal))
      << "the fourth ends a turn, whatever its type";
  EXPECT_THAT(data.merges, ElementsAre(std::pair("a", "b"), std::pair("ab", "c")));
  EXPECT_EQ(data.bos_id, 1);
  EXPECT_EQ(data.unk_id, -1);  // byte-level BPE leaves out what it has no token for
  EXPECT_EQ(data.pad_id, 39);
  EXPECT_THAT(data.eos_ids, ElementsAre(2, 3));
  EXPECT_TRUE(data.add_bos);
  EXPECT_FALSE(data.add_eos);
  EXPECT_EQ(data.chat_template, "{{ messages }}");
  EXPECT_EQ(data.tool_chat_template, "{{ tools }}");
  EXPECT_EQ(read.contents->config.bos_token_id, 1);
  EXPECT_THAT(read.contents->config.eos_token_ids, ElementsAre(2, 3));

  EXPECT_THAT(TokenizerError(WithTokens(model, 39)), HasSubstr("has 39 tokens, but tensor \"token_embd.weight\" has 40 rows"));
  EXPECT_THAT(TokenizerError(WithTokens(model, 40).I32s("tokenizer.ggml.token_type", {1})),
              HasSubstr("has 1 entries for 40 tokens"));
  types[5] = 9;
  EXPECT_THAT(TokenizerError(WithTokens(model, 40).I32s("tokenizer.ggml.token_type", types)),
              HasSubstr("of token 5 is 9, expected 1..6"));
  for (const char* merge : {"ab", "", " ", "ab "}) {
    EXPECT_THAT(TokenizerError(WithTokens(model, 40, {"a b", merge})), HasSubstr("entry 1 is"));
  }
}

TEST(GgufModelTest, WhatATokenizerNeedsIsAskedForByName) {
  const TinyModel model = RandomModel(TinyConfig(), 9);
  std::vector<std::string> tokens;
  for (int32_t i = 0; i < 40; ++i) tokens.push_back(fmt::format("t{}", i));
  const auto with = [&](const char* kind) {
    return ToGguf(model).String("tokenizer.ggml.model", kind).Strings("tokenizer.ggml.tokens", tokens);
  };
  EXPECT_THAT(TokenizerError(with("gpt2")), HasSubstr("metadata key \"tokenizer.ggml.merges\" is missing"));
  EXPECT_THAT(TokenizerError(with("llama")), HasSubstr("metadata key \"tokenizer.ggml.scores\" is missing"));
  EXPECT_THAT(TokenizerError(with("t5")), HasSubstr("metadata key \"tokenizer.ggml.scores\" is missing"));
  EXPECT_THAT(TokenizerError(ToGguf(model).String("tokenizer.ggml.model", "gpt2")),
              HasSubstr("\"tokenizer.ggml.tokens\" is missing"));
  EXPECT_THAT(TokenizerError(ToGguf(model).Strings("tokenizer.ggml.tokens", tokens)),
              HasSubstr("\"tokenizer.ggml.model\" is missing"));
  const Read none(ToGguf(model));
  EXPECT_EQ(none.contents->tokenizer_status.code(), StatusCode::kNotFound);
  const Read wrong(with("gpt2"));
  EXPECT_EQ(wrong.contents->tokenizer_status.code(), StatusCode::kInvalidArgument) << "not as good as none";
}

// Keys that llama.cpp does without have llama.cpp's defaults here.
TEST(GgufModelTest, WhatIsOptionalHasItsDefault) {
  ModelConfig config = TinyConfig();
  config.num_kv_heads = config.num_qo_heads;
  config.head_dim = config.hidden_size / config.num_qo_heads;
  config.rope.theta = 10000.0f;
  GgufWriter writer = ToGguf(RandomModel(config, 3));
  for (const char* key :
       {"attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base"}) {
    writer.Without(std::string("llama.") + key);
    const Read read(writer);
    ASSERT_TRUE(read.contents.ok()) << key << ": " << read.message();
    const ModelConfig& found = read.contents->config;
    EXPECT_EQ(found.num_kv_heads, config.num_qo_heads) << key;
    EXPECT_EQ(found.head_dim, config.head_dim) << key;
    EXPECT_EQ(found.rotated(), config.head_dim) << key;
    EXPECT_EQ(found.rope.theta, 10000.0f) << key;
    EXPECT_EQ(found.rope.scaling, RopeScaling::kNone) << key;
    EXPECT_EQ(found.rope.factor, 1.0f) << key;
  }
}

TEST(GgufModelTest, WhatIsRequiredIsAskedForByName) {
  const TinyModel model = RandomModel(TinyConfig(), 3);
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
                          "attention.layer_norm_rms_epsilon"}) {
    const std::string name = std::string("llama.") + key;
    EXPECT_THAT(Read(ToGguf(model).Without(name)).message(), HasSubstr(name));
  }
  EXPECT_THAT(Read(ToGguf(model).Without("general.architecture")).message(), HasSubstr("general.architecture"));
}

// Ids of today's keys, of CodeLlama's, and none that is no token.
TEST(GgufModelTest, FillInTheMiddleTokensHaveKeys) {
  const TinyModel model = RandomModel(TinyConfig(), 9);
  const auto fim = [&](GgufWriter writer) {
    const Read read(writer.I32s("tokenizer.ggml.token_type", std::vector<int32_t>(40, 1)));
    EXPECT_TRUE(read.contents.ok() && read.contents->tokenizer_status.ok()) << read.message();
    return read.contents->tokenizer->fim;
  };
  const auto key = [](const char* name) { return std::string("tokenizer.ggml.") + name; };
  FimTokens found = fim(WithTokens(model, 40)
                            .U32(key("fim_pre_token_id"), 7)
                            .U32(key("fim_suf_token_id"), 8)
                            .U32(key("fim_mid_token_id"), 9)
                            .U32(key("fim_rep_token_id"), 10)
                            .U32(key("fim_sep_token_id"), 11)
                            .U32(key("fim_pad_token_id"), 12));
  EXPECT_THAT((std::vector{found.prefix, found.suffix, found.middle, found.repository, found.file}), ElementsAre(7, 8, 9, 10, 11));
  EXPECT_THAT(found.ends, ElementsAre(12));
  found = fim(WithTokens(model, 40).U32(key("prefix_token_id"), 3).U32(key("suffix_token_id"), 4).U32(key("middle_token_id"), 5));
  EXPECT_THAT((std::vector{found.prefix, found.suffix, found.middle, found.repository}), ElementsAre(3, 4, 5, -1));
  EXPECT_FALSE(fim(WithTokens(model, 40).U32(key("fim_pre_token_id"), 40)).usable());
}

TEST(GgufModelTest, IdsOfNoTokenCountAsAbsent) {
  const TinyModel model = RandomModel(TinyConfig(), 9);
  for (const char* name :
       {"bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "padding_token_id", "unknown_token_id"}) {
    for (const uint32_t id : {40u, 1'000'000u, 4'294'967'295u}) {
      const Read read(WithTokens(model, 40)
                          .I32s("tokenizer.ggml.token_type", std::vector<int32_t>(40, 1))
                          .U32(std::string("tokenizer.ggml.") + name, id));
      ASSERT_TRUE(read.contents.ok()) << read.message();
      ASSERT_TRUE(read.contents->tokenizer_status.ok()) << read.contents->tokenizer_status.ToString();
      const TokenizerData& data = *read.contents->tokenizer;
      EXPECT_TRUE(data.bos_id == -1 && data.eos_ids.empty() && data.pad_id == -1 && data.unk_id == -1) << name;
      const bool is_minus_one = id == 4'294'967'295u, is_read = std::string_view(name) != "unknown_token_id";
      if (is_minus_one || !is_read) {
        EXPECT_THAT(read.contents->notes, ::testing::IsEmpty()) << "-1 is how files say that there is none";
      } else {
        EXPECT_THAT(read.contents->notes, ElementsAre(HasSubstr(fmt::format("{} is {}, which is none of 40 tokens", name, id))));
      }
    }
  }
}

TEST(GgufModelTest, FallbacksAreNoted) {
  const TinyModel model = RandomModel(TinyConfig(), 9);
  const Read read(WithTokens(model, 40));
  EXPECT_THAT(read.contents->notes, ElementsAre(HasSubstr("tokenizer.ggml.token_type is missing")));
  std::vector<std::string> tokens(40, "x");
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] += std::to_string(i);
  const Read no_pre(ToGguf(model)
                        .String("tokenizer.ggml.model", "gpt2")
                        .Strings("tokenizer.ggml.tokens", tokens)
                        .Strings("tokenizer.ggml.merges", {})
                        .I32s("tokenizer.ggml.token_type", std::vector<int32_t>(40, 1)));
  EXPECT_THAT(no_pre.contents->notes, ElementsAre(HasSubstr("tokenizer.ggml.pre is missing")));
}

// The ends of a model whose first tokens are `texts`, of the types `types`.
std::vector<int32_t> Ends(const TinyModel& model, const std::vector<std::string>& texts, std::vector<int32_t> types,
                          const std::vector<std::pair<std::string, uint32_t>>& keys) {
  std::vector<std::string> tokens = texts;
  for (size_t i = tokens.size(); i < 40; ++i) tokens.push_back(fmt::format("t{}", i));
  types.resize(40, 1);
  GgufWriter writer = ToGguf(model)
                          .String("tokenizer.ggml.model", "gpt2")
                          .Strings("tokenizer.ggml.tokens", tokens)
                          .Strings("tokenizer.ggml.merges", {})
                          .I32s("tokenizer.ggml.token_type", types);
  for (const auto& [key, id] : keys) writer.U32("tokenizer.ggml." + key, id);
  const Read read(writer);
  EXPECT_TRUE(read.contents.ok()) << read.message();
  EXPECT_TRUE(read.contents->tokenizer.has_value()) << read.contents->tokenizer_status.ToString();
  EXPECT_EQ(read.contents->config.eos_token_ids, read.contents->tokenizer->eos_ids);
  return read.contents->tokenizer->eos_ids;
}

TEST(GgufModelTest, ControlTokensEndByTheirText) {
  const TinyModel model = RandomModel(TinyConfig(), 9);
  const std::vector<std::string> llama3 = {"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eom_id|>",
                                           "<|eot_id|>"};
  EXPECT_THAT(Ends(model, llama3, {3, 3, 3, 3, 3}, {{"eos_token_id", 1}}), ElementsAre(1, 3, 4));
  EXPECT_THAT(Ends(model, llama3, {3, 3, 3, 3, 3}, {{"eos_token_id", 4}}), ElementsAre(4, 1, 3)) << "that of the key is the first";
  EXPECT_THAT(Ends(model, llama3, {3, 3, 3, 3, 3}, {}), ElementsAre(1, 3, 4));
  const std::vector<std::string> chatml = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  EXPECT_THAT(Ends(model, chatml, {3, 3, 3}, {{"bos_token_id", 0}, {"eos_token_id", 2}, {"padding_token_id", 0}}),
              ElementsAre(2, 0));
  EXPECT_THAT(Ends(model, {"<eos>", "<end_of_turn>", "<|end|>", "\u2581<EOT>"}, {3, 3, 3, 3}, {{"eos_token_id", 0}}),
              ElementsAre(0, 1, 2, 3));

  // Tokens of any type end by their text, but for the unknown token (of SmolLM2's instruct models).
  EXPECT_THAT(Ends(model, chatml, {1, 3, 4}, {{"eos_token_id", 1}}), ElementsAre(1, 0, 2));
  EXPECT_THAT(Ends(model, chatml, {3, 3, 3}, {{"bos_token_id", 1}, {"eos_token_id", 2}, {"unknown_token_id", 0}}), ElementsAre(2));
  EXPECT_THAT(Ends(model, {"a", "\n"}, {1, 1}, {{"eos_token_id", 1}}), ElementsAre(1));
}

TEST(GgufModelTest, AnEndOfATurnIsAControlTokenWhateverItsType) {
  using Kind = TokenizerData::TokenKind;
  const TinyModel model = RandomModel(TinyConfig(), 9);
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<turn>", "\n"};
  for (size_t i = tokens.size(); i < 40; ++i) tokens.push_back(fmt::format("t{}", i));
  std::vector<int32_t> types(40, 1);
  types[0] = 3, types[1] = types[2] = types[3] = 4;
  const Read read(ToGguf(model)
                      .String("tokenizer.ggml.model", "gpt2")
                      .String("tokenizer.ggml.pre", "smollm")
                      .Strings("tokenizer.ggml.tokens", tokens)
                      .Strings("tokenizer.ggml.merges", {})
                      .I32s("tokenizer.ggml.token_type", types)
                      .U32("tokenizer.ggml.eos_token_id", 3)
                      .U32("tokenizer.ggml.eot_token_id", 4));
  ASSERT_TRUE(read.contents.ok()) << read.message();
  const TokenizerData& data = *read.contents->tokenizer;
  EXPECT_THAT(data.eos_ids, ElementsAre(3, 4, 0, 2));
  EXPECT_EQ(data.kinds[1], Kind::kUserDefined) << "it begins a turn";
  EXPECT_EQ(data.kinds[2], Kind::kControl);
  EXPECT_EQ(data.kinds[3], Kind::kControl);
  EXPECT_EQ(data.kinds[4], Kind::kNormal) << "a newline stays text";
  EXPECT_THAT(read.contents->notes, ElementsAre(HasSubstr("\"<|im_end|>\" ends a turn"), HasSubstr("\"<turn>\" ends a turn")));
}

std::string SplitFileName(int32_t number, int32_t count) { return fmt::format("m-{:05}-of-{:05}.gguf", number, count); }

GgufWriter& AddSplit(GgufWriter& writer, uint16_t index, uint16_t count, int32_t tensors) {
  return writer.Value("split.no", 2, Raw(index)).Value("split.count", 2, Raw(count)).Value("split.tensors.count", 5, Raw(tensors));
}

// A model in three parts, of which the first has the metadata.
struct SplitModel {
  SplitModel() {
    TinyModel begin = model;
    begin.weights.erase("lm_head.weight");
    begin.weights.erase("model.norm.weight");
    const auto all = static_cast<int32_t>(model.weights.size());
    const auto raw = [&](const char* name) { return Raw(std::span<const float>(model.weights.at(name))); };
    parts[0] = ToGguf(begin);
    AddSplit(parts[0], 0, 3, all);
    AddSplit(parts[1], 1, 3, all).Tensor("output.weight", {40, 32}, 0, raw("lm_head.weight"));
    AddSplit(parts[2], 2, 3, all).Tensor("output_norm.weight", {32}, 0, raw("model.norm.weight"));
    for (int32_t i = 0; i < 3; ++i) paths[i] = folder.Write(SplitFileName(i + 1, 3), parts[i].Bytes());
  }
  std::string Error(const std::string& path) const {
    const Result<GgufFiles> files = OpenGguf(path);
    EXPECT_FALSE(files.ok());
    EXPECT_EQ(files.status().message().find('\n'), std::string::npos) << "one line";
    return files.ok() ? "" : files.status().message();
  }

  TinyModel model = RandomModel(TinyConfig(), 23);
  TemporaryFolder folder;
  GgufWriter parts[3];
  std::string paths[3];
};

TEST(GgufModelTest, SplitFilesAreOneModel) {
  const SplitModel split;
  const Result<GgufFiles> files = OpenGguf(split.paths[0]);
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  EXPECT_EQ(files->files.size(), 3u);
  const Result<ModelContents> contents = ReadGgufModel(files->directory);
  ASSERT_TRUE(contents.ok()) << contents.status().ToString();
  EXPECT_FALSE(contents->config.tie_embeddings) << "the second part has the output projection";
  EXPECT_EQ(contents->tensors.at("model.norm.weight").file, split.paths[2]);
  ExpectWeightsEqual(*contents, split.model);

  // A whole file has no such keys, or a count of 0 once its parts were merged.
  for (GgufWriter writer : {ToGguf(split.model), ToGguf(split.model).Value("split.count", 2, Raw(uint16_t{0}))}) {
    const Result<GgufFiles> whole = OpenGguf(split.folder.Write("whole.gguf", writer.Bytes()));
    ASSERT_TRUE(whole.ok()) << whole.status().ToString();
    EXPECT_EQ(whole->files.size(), 1u);
    EXPECT_TRUE(ReadGgufModel(whole->directory).ok());
  }
}

TEST(GgufModelTest, SplitFilesThatDoNotFitAreNamed) {
  const SplitModel split;
  EXPECT_THAT(
      split.Error(split.paths[1]),
      HasSubstr(fmt::format("{}: this is part 2 of 3 of a split model; give the first part, {}", split.paths[1], split.paths[0])));
  EXPECT_THAT(split.Error(split.folder.Write("renamed.gguf", split.parts[1].Bytes())),
              HasSubstr("renamed.gguf: this is part 2 of 3 of a split model; give the first part, NAME-00001-of-00003.gguf"));
  EXPECT_THAT(split.Error(split.folder.Write("renamed.gguf", split.parts[0].Bytes())),
              HasSubstr("renamed.gguf: this is part 1 of 3 of a split model, whose name must end with -00001-of-00003.gguf"));

  const auto with_second = [&](const GgufWriter& second) {
    split.folder.Write(SplitFileName(2, 3), second.Bytes());
    return split.Error(split.paths[0]);
  };
  EXPECT_THAT(with_second(split.parts[2]),
              HasSubstr(fmt::format("{}: split.no is 2 and split.count is 3, expected 1 and 3, as {} says", split.paths[1],
                                    split.paths[0])));
  GgufWriter other_count;
  EXPECT_THAT(with_second(AddSplit(other_count, 1, 4, 21)), HasSubstr("split.no is 1 and split.count is 4, expected 1 and 3"));
  EXPECT_THAT(with_second(GgufWriter()), HasSubstr("split.no is 0 and split.count is 1, expected 1 and 3"));
  GgufWriter beyond;
  EXPECT_THAT(with_second(AddSplit(beyond, 3, 3, 21)), HasSubstr("\"split.no\" is 3, expected 0..2"));
  GgufWriter empty;
  EXPECT_THAT(with_second(AddSplit(empty, 1, 3, 21)), HasSubstr("split.tensors.count is 21, but the 3 parts have 20 tensors"));
  GgufWriter twice;
  AddSplit(twice, 1, 3, 21).Tensor("token_embd.weight", {1}, 0, Raw(1.f));
  EXPECT_THAT(with_second(twice),
              HasSubstr(fmt::format("{}: tensor \"token_embd.weight\" is in {}, too", split.paths[1], split.paths[0])));

  std::filesystem::remove(split.paths[1]);
  EXPECT_EQ(OpenGguf(split.paths[0]).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(split.Error(split.paths[0]), HasSubstr(split.paths[1] +
                                                     ": cannot open: No such file or directory; it is part 2 of 3 of the "
                                                     "model that begins with " +
                                                     split.paths[0]));
}

TEST(GgufModelTest, RefusesByName) {
  TinyModel model = RandomModel(TinyConfig(), 10);
  EXPECT_THAT(Read(GgufWriter()).message(), HasSubstr("\"general.architecture\" is missing"));
  EXPECT_THAT(Read(GgufWriter().String("general.architecture", "mamba")).message(),
              HasSubstr("architecture \"mamba\" is not supported; supported are llama, qwen2, qwen3, phi2, starcoder, gemma3"));
  EXPECT_THAT(Read(GgufWriter().String("general.architecture", "llama")).message(), HasSubstr("\"llama.block_count\" is missing"));
  EXPECT_THAT(Read(ToGguf(model).U32("llama.expert_count", 8)).message(), HasSubstr("a mixture of 8 experts"));
  EXPECT_THAT(Read(ToGguf(model).Tensor("blk.0.ffn_gate_inp.weight", {8}, 0, std::string(32, '\0'))).message(),
              HasSubstr("tensor \"blk.0.ffn_gate_inp.weight\" of shape [8] is not part of a llama model"));
  EXPECT_THAT(Read(ToGguf(model).Tensor("model.norm.weight", {32}, 0, std::string(128, '\0'))).message(),
              HasSubstr("two tensors are \"model.norm.weight\""));

  TinyModel missing = model;
  missing.weights.erase("model.layers.1.mlp.up_proj.weight");
  EXPECT_THAT(Read(ToGguf(missing)).message(),
              HasSubstr("tensor \"model.layers.1.mlp.up_proj.weight\" of shape [48, 32] is missing"));
  TinyModel no_embedding = model;
  no_embedding.weights.erase("model.embed_tokens.weight");
  EXPECT_THAT(Read(ToGguf(no_embedding)).message(), HasSubstr("tensor \"token_embd.weight\" is missing"));
  TinyModel reshaped = model;
  reshaped.weights.erase("model.norm.weight");
  EXPECT_THAT(Read(ToGguf(reshaped).Tensor("output_norm.weight", {31}, 0, std::string(124, '\0'))).message(),
              HasSubstr("tensor \"model.norm.weight\" has shape [31], but the config asks for [32]"));

  ModelConfig config = TinyConfig();
  config.architecture = "qwen2";
  config.num_kv_heads = 3;
  EXPECT_THAT(Read(ToGguf(RandomModel(config, 1))).message(), HasSubstr("4 query heads are not a multiple of 3 key/value heads"));
  config.num_kv_heads = 2;
  for (const int32_t head_dim : {7, 258}) {
    config.head_dim = head_dim;
    EXPECT_THAT(Read(ToGguf(RandomModel(config, 1))).message(), HasSubstr("expected an even number up to 256"));
  }
}

}  // namespace
}  // namespace coppice
