// Whole models from disk: GGUF files, folders, shards, fixtures, and the default model where this machine has it.
#include "model/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/weights.h"
#include "tests/support/tiny_model.h"
#include "tests/support/work_growth.h"

namespace coppice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RandomModel;
using testing::TemporaryFolder;
using testing::TinyConfig;
using testing::TinyModel;

std::vector<float> LoadF32(const Checkpoint& checkpoint, const std::string& name, int64_t rows, int64_t cols) {
  std::vector<float> values(static_cast<size_t>(rows * cols));
  const Status status = checkpoint.Load(name, rows, cols, DType::kF32, std::as_writable_bytes(std::span(values)));
  EXPECT_TRUE(status.ok()) << status.ToString();
  return values;
}

void ExpectHolds(const Checkpoint& checkpoint, const TinyModel& model) {
  const auto expected = ExpectedWeights(model.config);
  for (const auto& [name, values] : model.weights) {
    ASSERT_TRUE(checkpoint.tensors().contains(name));
    const std::vector<int64_t>& shape = expected.at(name);
    EXPECT_EQ(LoadF32(checkpoint, name, shape.size() == 1 ? 1 : shape[0], shape.back()), values) << name;
  }
}

std::string OpenError(const std::string& path) {
  const auto checkpoint = Checkpoint::Open(path);
  EXPECT_FALSE(checkpoint.ok()) << path;
  EXPECT_EQ(checkpoint.status().message().find('\n'), std::string::npos) << "one line";
  return checkpoint.status().message();
}

TEST(CheckpointTest, GgufFileFolderAndShardsHoldTheSameModel) {
  const TinyModel model = RandomModel(TinyConfig(), 11);
  const TemporaryFolder folder, sharded;
  const std::string gguf_path = folder.Write("model.gguf", testing::ToGguf(model).Bytes());
  folder.Write("config.json", testing::ToConfigJson(model.config));
  folder.Write("model.safetensors", testing::ToSafetensors(model));

  std::vector<std::string> shards[2];
  std::string map;
  for (const auto& [name, values] : model.weights) {
    const size_t shard = map.size() / 7 % 2;  // some in each
    shards[shard].push_back(name);
    map += fmt::format("{}\"{}\":\"model-{}.safetensors\"", map.empty() ? "" : ",", name, shard);
  }
  ASSERT_FALSE(shards[0].empty() || shards[1].empty());
  sharded.Write("config.json", testing::ToConfigJson(model.config));
  sharded.Write("model-0.safetensors", testing::ToSafetensors(model, shards[0]));
  sharded.Write("model-1.safetensors", testing::ToSafetensors(model, shards[1]));
  const std::string index = sharded.Write("model.safetensors.index.json", "{\"metadata\":{},\"weight_map\":{" + map + "}}");

  for (const std::string& path : {gguf_path, folder.path(), sharded.path()}) {
    const auto checkpoint = Checkpoint::Open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    EXPECT_EQ((*checkpoint)->config().num_kv_heads, model.config.num_kv_heads);
    EXPECT_FALSE((*checkpoint)->tokenizer().has_value());
    ExpectHolds(**checkpoint, model);
  }

  sharded.Write("model.safetensors.index.json", "{\"weight_map\":{" + map + ",\"more\":\"model-1.safetensors\"}}");
  EXPECT_THAT(OpenError(sharded.path()), HasSubstr("tensor \"more\" is missing from shard \"model-1.safetensors\""));
  sharded.Write("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../model-1.safetensors\"}}");
  EXPECT_THAT(OpenError(sharded.path()), HasSubstr("expected the name of a file in the same folder"));
  sharded.Write("model.safetensors.index.json", "{\"weight_map\":{\"model.norm.weight\":\"model-0.safetensors\"}}");
  EXPECT_THAT(OpenError(sharded.path()), HasSubstr("but the index puts it in"));
  sharded.Write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  std::filesystem::remove(sharded.path() + "/model-1.safetensors");
  EXPECT_THAT(OpenError(sharded.path()), HasSubstr("model-1.safetensors: cannot open: No such file"));
}

TEST(CheckpointTest, PartsOfASplitGgufFileAreOneModel) {
  const TinyModel model = RandomModel(TinyConfig(), 14);
  TinyModel begin = model;
  begin.weights.erase("lm_head.weight");
  const auto part = [](testing::GgufWriter writer, uint16_t index) {
    return writer.Value("split.no", 2, testing::Raw(index)).Value("split.count", 2, testing::Raw(uint16_t{2}));
  };
  const TemporaryFolder folder;
  const std::string first = folder.Write("m-00001-of-00002.gguf", part(testing::ToGguf(begin), 0).Bytes());
  EXPECT_THAT(OpenError(first), HasSubstr("m-00002-of-00002.gguf: cannot open"));
  const std::string head = testing::Raw(std::span<const float>(model.weights.at("lm_head.weight")));
  const std::string second =
      folder.Write("m-00002-of-00002.gguf", part(testing::GgufWriter(), 1).Tensor("output.weight", {40, 32}, 0, head).Bytes());
  EXPECT_THAT(OpenError(second), HasSubstr("give the first part, " + first));
  const auto checkpoint = Checkpoint::Open(first);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  ExpectHolds(**checkpoint, model);
}

TEST(CheckpointTest, LoadChecksNameShapeAndSize) {
  const TemporaryFolder folder;
  const auto checkpoint = Checkpoint::Open(folder.Write("m.gguf", testing::ToGguf(RandomModel(TinyConfig(), 12)).Bytes()));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  std::vector<std::byte> out(48 * 32 * 4);
  const auto load = [&](const char* name, int64_t rows, int64_t cols, size_t bytes) {
    return (*checkpoint)->Load(name, rows, cols, DType::kBF16, std::span(out).first(bytes));
  };
  EXPECT_TRUE(load("model.layers.0.mlp.up_proj.weight", 48, 32, 48 * 32 * 2).ok());
  EXPECT_EQ(load("model.layers.2.mlp.up_proj.weight", 48, 32, 48 * 32 * 2).code(), StatusCode::kNotFound);
  EXPECT_THAT(load("model.layers.0.mlp.up_proj.weight", 32, 48, 48 * 32 * 2).message(),
              HasSubstr("\"model.layers.0.mlp.up_proj.weight\" has shape [48, 32], but [32, 48] was asked for"));
  EXPECT_THAT(load("model.norm.weight", 32, 1, 64).message(), HasSubstr("has shape [32], but [32, 1] was asked for"));
  EXPECT_THAT(load("model.norm.weight", 1, 32, 66).message(), HasSubstr("needs 64 bytes as bf16, but 66 were given"));
}

TEST(CheckpointTest, F16SuitsMatricesOfF16UnlessTheFamilyExceedsIt) {
  const TinyModel model = RandomModel(TinyConfig(), 11);
  const TemporaryFolder folder;
  const auto suitable_half = [](const std::string& path) { return Checkpoint::Open(path).value()->SuitableHalf(); };
  EXPECT_EQ(suitable_half(folder.Write("f16.gguf", testing::ToGguf(model, 3, StoredType::kF16).Bytes())), DType::kF16);
  EXPECT_EQ(suitable_half(folder.Write("f32.gguf", testing::ToGguf(model).Bytes())), DType::kBF16);
  const std::string fixtures = COPPICE_TEST_DATA "/models/";
  EXPECT_EQ(suitable_half(fixtures + "llama-gqa"), DType::kBF16) << "weights of bf16";
  EXPECT_TRUE(Checkpoint::Open(fixtures + "gemma3-a").value()->config().blocks.exceeds_f16);
}

TEST(CheckpointTest, OpensEveryFixture) {
  struct Fixture {
    const char* name;
    int32_t head_dim, window;
    bool qkv_bias, qk_norm;
  };
  for (const Fixture& fixture :
       {Fixture{"llama-gqa", 16, 0, false, false}, Fixture{"llama3-rope", 32, 0, false, false},
        Fixture{"llama-hd64-long", 64, 0, false, false}, Fixture{"llama-hd128-long", 128, 0, false, false},
        Fixture{"mistral-sw", 16, 24, false, false}, Fixture{"mistral-hd64-sw-long", 64, 100, false, false},
        Fixture{"qwen2-a", 16, 0, true, false}, Fixture{"qwen3", 32, 0, false, true}}) {
    const auto checkpoint = Checkpoint::Open(std::string(COPPICE_TEST_DATA "/models/") + fixture.name);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    const ModelConfig& config = (*checkpoint)->config();
    EXPECT_EQ(config.head_dim, fixture.head_dim) << fixture.name;
    EXPECT_EQ(config.window, fixture.window) << fixture.name;
    EXPECT_EQ(config.blocks.qkv_bias, fixture.qkv_bias) << fixture.name;
    EXPECT_EQ(config.blocks.qk_norm, fixture.qk_norm) << fixture.name;
    EXPECT_THAT(config.eos_token_ids, ::testing::ElementsAre(2)) << fixture.name;
    // bf16 files: conversion to f32 and back changes nothing.
    const std::vector<float> f32 = LoadF32(**checkpoint, "model.embed_tokens.weight", config.vocab_size, config.hidden_size);
    std::vector<BF16> bf16(f32.size());
    ASSERT_TRUE((*checkpoint)
                    ->Load("model.embed_tokens.weight", config.vocab_size, config.hidden_size, DType::kBF16,
                           std::as_writable_bytes(std::span(bf16)))
                    .ok());
    for (size_t i = 0; i < f32.size(); ++i) ASSERT_EQ(bf16[i].ToFloat(), f32[i]);
  }
}

TEST(CheckpointTest, FolderErrorsNameTheFile) {
  const TinyModel model = RandomModel(TinyConfig(), 13);
  const TemporaryFolder folder;
  EXPECT_THAT(OpenError(folder.path() + "/none"), HasSubstr("/none: cannot open: No such file"));
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("no config.json; give a .gguf file, or a folder"));
  folder.Write("config.json", testing::ToConfigJson(model.config));
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
  const std::string pickle = folder.Write("pytorch_model.bin", "");
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("the weights are in pytorch_model.bin, which is not read; write model.safeten"));
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("save_pretrained('" + folder.path() + "')"));
  std::filesystem::remove(pickle);
  const std::string weights = folder.Write("model.safetensors", testing::ToSafetensors(model));
  EXPECT_THAT(OpenError(weights), HasSubstr("give the folder that holds it"));
  EXPECT_THAT(OpenError(folder.Write("empty.gguf", "")), HasSubstr("empty.gguf: the file is empty"));
  EXPECT_THAT(OpenError(folder.Write("text.gguf", "hello")), HasSubstr("it begins with \"hell\", not \"GGUF\""));

  ModelConfig other = model.config;
  other.vocab_size = 41;
  folder.Write("config.json", testing::ToConfigJson(other));
  EXPECT_THAT(OpenError(folder.path()),
              HasSubstr("model.safetensors: tensor \"lm_head.weight\" has shape [40, 32], but the config asks for [41, 32]"));
  other = model.config;
  other.num_layers = 1;
  folder.Write("config.json", testing::ToConfigJson(other));
  EXPECT_THAT(OpenError(folder.path()),
              HasSubstr("\"model.layers.1.input_layernorm.weight\" of shape [32] is not part of a llama model of 1 layers"));
  other.num_layers = 2000000000;
  folder.Write("config.json", testing::ToConfigJson(other));
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("the config says 2000000000 layers, but there are only 21 tensors"));
}

// A safetensors file with other names, or without a tensor whose new name is empty.
std::string Renamed(const std::string& file, const std::function<std::string(const std::string&)>& rename) {
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof size);
  const auto header = nlohmann::json::parse(file.substr(8, size));
  nlohmann::json renamed = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : header.items()) {
    const std::string other = rename(name);
    if (other.empty()) continue;
    const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    renamed[other] = tensor;
    renamed[other]["data_offsets"] = {data.size(), data.size() + end - begin};
    data += file.substr(8 + size + begin, end - begin);
  }
  const std::string text = renamed.dump();
  return testing::Raw(static_cast<uint64_t>(text.size())) + text + data;
}

TEST(CheckpointTest, NamesWithoutTheModelsPrefix) {
  const TinyModel model = RandomModel(TinyConfig(), 15);
  const TemporaryFolder folder;
  const std::string file = testing::ToSafetensors(model);
  const auto without = [](const std::string& name) { return name.starts_with("model.") ? name.substr(6) : name; };
  folder.Write("config.json", testing::ToConfigJson(model.config));
  folder.Write("model.safetensors", Renamed(file, without));
  const auto found = Checkpoint::Open(folder.path());
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  ExpectHolds(**found, model);
  // As a model that was saved without its head.
  auto config = nlohmann::json::parse(testing::ToConfigJson(model.config));
  config["architectures"] = {"LlamaModel"};
  folder.Write("config.json", config.dump());
  EXPECT_TRUE(Checkpoint::Open(folder.path()).ok());
  folder.Write("model.safetensors",
               Renamed(file, [&](const std::string& name) { return name == "lm_head.weight" ? "" : without(name); }));
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("\"lm_head.weight\" of shape [40, 32] is missing"));
  // Both names at once.
  const std::string half = Renamed(file, [](const std::string& name) { return name == "lm_head.weight" ? "norm.weight" : name; });
  folder.Write("model.safetensors", half);
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("tensor \"model.norm.weight\" is there twice, once without \"model.\""));
}

TEST(CheckpointTest, EitherOfTwoTiedMatrices) {
  TinyModel model = RandomModel(TinyConfig(), 16);
  model.config.tie_embeddings = true;
  model.weights.erase("lm_head.weight");
  const TemporaryFolder folder;
  folder.Write("config.json", testing::ToConfigJson(model.config));
  const std::string file = testing::ToSafetensors(model);
  for (const char* embedding : {"model.embed_tokens.weight", "lm_head.weight"}) {
    folder.Write("model.safetensors", Renamed(file, [&](const std::string& name) {
                   return name == "model.embed_tokens.weight" ? std::string(embedding) : name;
                 }));
    const auto found = Checkpoint::Open(folder.path());
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    EXPECT_TRUE((*found)->config().tie_embeddings);
    EXPECT_THAT((*found)->notes(), ::testing::IsEmpty());
    ExpectHolds(**found, model);
  }
}

// As transformers 5 has it: what the file holds counts, and not what the config says of it.
TEST(CheckpointTest, AHeadBesideTiedEmbeddings) {
  TinyModel model = RandomModel(TinyConfig(), 17);
  ModelConfig tied = model.config;
  tied.tie_embeddings = true;
  const TemporaryFolder folder;
  folder.Write("config.json", testing::ToConfigJson(tied));
  folder.Write("model.safetensors", testing::ToSafetensors(model));
  const auto other = Checkpoint::Open(folder.path());
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  EXPECT_FALSE((*other)->config().tie_embeddings);
  EXPECT_THAT((*other)->notes(),
              ElementsAre(HasSubstr("\"lm_head.weight\" holds other values than \"model.embed_tokens.weight\"")));
  ExpectHolds(**other, model);

  model.weights["lm_head.weight"] = model.weights["model.embed_tokens.weight"];
  folder.Write("model.safetensors", testing::ToSafetensors(model));
  const auto same = Checkpoint::Open(folder.path());
  ASSERT_TRUE(same.ok()) << same.status().ToString();
  EXPECT_TRUE((*same)->config().tie_embeddings);
  EXPECT_FALSE((*same)->tensors().contains("lm_head.weight"));
  EXPECT_THAT((*same)->notes(), ::testing::IsEmpty());
}

TEST(CheckpointTest, SamplingDefaultsOfAFolder) {
  const TinyModel model = RandomModel(TinyConfig(), 18);
  const TemporaryFolder folder;
  folder.Write("config.json", testing::ToConfigJson(model.config));
  folder.Write("model.safetensors", testing::ToSafetensors(model));
  const auto defaults = [&](const char* text) {
    folder.Write("generation_config.json", text);
    return *Checkpoint::Open(folder.path());
  };
  const auto all = defaults(
      R"({"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "eos_token_id": 2})");
  EXPECT_EQ(all->sampling_defaults().temperature, 0.7f);
  EXPECT_EQ(all->sampling_defaults().top_p, 0.8f);
  EXPECT_EQ(all->sampling_defaults().top_k, 20);
  EXPECT_EQ(all->sampling_defaults().min_p, 0.05f);
  EXPECT_EQ(all->sampling_defaults().repetition_penalty, 1.1f);
  EXPECT_EQ(defaults("{}")->sampling_defaults().temperature, std::nullopt);
  EXPECT_EQ(defaults(R"({"do_sample": false, "temperature": 0.6})")->sampling_defaults().temperature, 0.0f);
  const auto wrong = defaults(R"({"temperature": -1, "top_p": 0, "top_k": 2.5, "min_p": "x", "repetition_penalty": 2.0})");
  EXPECT_EQ(wrong->sampling_defaults().temperature, std::nullopt);
  EXPECT_EQ(wrong->sampling_defaults().repetition_penalty, 2.0f);
  EXPECT_THAT(wrong->notes(), ElementsAre(HasSubstr("\"temperature\" is left out"), HasSubstr("\"top_p\""),
                                          HasSubstr("\"top_k\" is left out: it is no integer"), HasSubstr("\"min_p\"")));
}

constexpr const char* kTokenizerJson = R"({"added_tokens": [{"id": 3, "content": "<e>", "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";

TEST(CheckpointTest, FolderWithTokenizer) {
  TinyModel model = RandomModel(TinyConfig(), 14);
  const TemporaryFolder folder;
  folder.Write("config.json", testing::ToConfigJson(model.config));
  folder.Write("generation_config.json", R"({"bos_token_id": 1, "eos_token_id": [2, 3]})");
  folder.Write("model.safetensors", testing::ToSafetensors(model));
  folder.Write("chat_template.jinja", "{{ messages }}");
  folder.Write("tokenizer.json", kTokenizerJson);
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const TokenizerData& data = (*checkpoint)->tokenizer().value();
  EXPECT_THAT(data.tokens, ::testing::ElementsAre("a", "b", "ab", "<e>"));
  EXPECT_THAT(data.eos_ids, ::testing::ElementsAre(2, 3));
  EXPECT_EQ(data.chat_template, "{{ messages }}");
  EXPECT_EQ(data.tool_chat_template, "");

  folder.Write("tokenizer_config.json",
               R"({"chat_template": [{"name": "default", "template": "old"}, {"name": "tool_use", "template": "old tools"}]})");
  const auto templates = [&] {
    const TokenizerData found = Checkpoint::Open(folder.path()).value()->tokenizer().value();
    return std::pair(found.chat_template, found.tool_chat_template);
  };
  EXPECT_EQ(templates(), std::pair(std::string("{{ messages }}"), std::string())) << "files replace what the config has";
  std::filesystem::create_directory(folder.path() + "/additional_chat_templates");
  folder.Write("additional_chat_templates/tool_use.jinja", "{{ tools }}");
  EXPECT_EQ(templates(), std::pair(std::string("{{ messages }}"), std::string("{{ tools }}")));
  std::filesystem::remove(folder.path() + "/chat_template.jinja");
  EXPECT_EQ(templates(), std::pair(std::string("old"), std::string("{{ tools }}")));
  // A processor's chat_template.json comes after chat_template.jinja and before tokenizer_config.json.
  std::filesystem::remove_all(folder.path() + "/additional_chat_templates");
  folder.Write("chat_template.json", R"({"chat_template": "{{ json }}"})");
  EXPECT_EQ(templates(), std::pair(std::string("{{ json }}"), std::string()));
  folder.Write("chat_template.jinja", "{{ messages }}");
  EXPECT_EQ(templates(), std::pair(std::string("{{ messages }}"), std::string()));
  std::filesystem::remove(folder.path() + "/chat_template.jinja");
  folder.Write("chat_template.json", R"({"chat_template": 3})");
  EXPECT_THAT(Checkpoint::Open(folder.path()).value()->tokenizer_status().message(),
              HasSubstr("chat_template.json: \"chat_template\" must be a string"));
  std::filesystem::remove(folder.path() + "/chat_template.json");

  folder.Write("tokenizer_config.json", "{}");
  folder.Write("special_tokens_map.json", R"({"eos_token": {"content": "a"}, "pad_token": "b"})");
  const TokenizerData special = Checkpoint::Open(folder.path()).value()->tokenizer().value();
  EXPECT_THAT(special.eos_ids, ::testing::ElementsAre(0, 2, 3)) << "with those of generation_config.json";
  EXPECT_EQ(special.pad_id, 1);

  folder.Write("tokenizer.json", "{");
  const auto unreadable = Checkpoint::Open(folder.path());  // runs on token ids, and says why on nothing else
  ASSERT_TRUE(unreadable.ok()) << unreadable.status().ToString();
  EXPECT_FALSE((*unreadable)->tokenizer().has_value());
  EXPECT_THAT((*unreadable)->tokenizer_status().message(), HasSubstr("/tokenizer.json: "));
  EXPECT_THAT((*unreadable)->MakeTokenizer().status().message(), HasSubstr("/tokenizer.json: "));
}

// The weights of `model` as they are, with `rename` applied to their names, and `more` names of one value each.
std::string RenamedSafetensors(const TinyModel& model, const std::function<std::string(std::string)>& rename,
                               const std::vector<std::string>& more) {
  const auto expected = ExpectedWeights(model.config);
  std::string header, data;
  const auto add = [&](const std::string& name, const std::string& shape, std::span<const float> values) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})", header.empty() ? "" : ",", name, shape,
                          begin, data.size());
  };
  for (const auto& [name, values] : model.weights) add(rename(name), fmt::format("{}", fmt::join(expected.at(name), ",")), values);
  for (const std::string& name : more) add(name, "1", std::vector<float>{0});
  header = "{" + header + "}";
  return testing::Raw(static_cast<uint64_t>(header.size())) + header + data;
}

TEST(CheckpointTest, TextModelOfGemma3InBothLayouts) {
  const auto fixture = Checkpoint::Open(COPPICE_TEST_DATA "/models/gemma3-a");
  ASSERT_TRUE(fixture.ok()) << fixture.status().ToString();
  const TinyModel model = RandomModel((*fixture)->config(), 16);
  std::ifstream stream(COPPICE_TEST_DATA "/models/gemma3-a/config.json");
  const std::string text_config{std::istreambuf_iterator<char>(stream), {}};
  const TemporaryFolder folder;
  folder.Write("config.json", R"({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": )" + text_config + "}");
  const auto to_hub = [](const std::string& name) { return "language_model." + name; };
  const auto to_later = [](const std::string& name) {
    return name.starts_with("model.") ? "model.language_model." + name.substr(6) : name;
  };
  const std::vector<std::string> vision[] = {{"vision_tower.a.weight", "multi_modal_projector.b"},
                                             {"model.vision_tower.a.weight", "model.multi_modal_projector.b"}};
  for (const std::string& file : {RenamedSafetensors(model, to_hub, vision[0]), RenamedSafetensors(model, to_later, vision[1])}) {
    folder.Write("model.safetensors", file);
    const auto checkpoint = Checkpoint::Open(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    EXPECT_EQ((*checkpoint)->config().architecture, "gemma3");
    ExpectHolds(**checkpoint, model);
  }
  folder.Write("model.safetensors", RenamedSafetensors(model, to_hub, {"audio_tower.weight"}));
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("tensor \"audio_tower.weight\" of shape [1] is not part of a gemma3 model"));
  folder.Write("model.safetensors", RenamedSafetensors(model, to_hub, {"model.norm.weight"}));
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("tensor \"model.norm.weight\" is there twice"));
}

TEST(CheckpointTest, WorkIsProportionalToIndexAndShard) {
  // It is refused at the end, for its tensors are no model's.
  const auto make_folder = [](int count) {
    std::string map, header;
    for (int i = 0; i < count; ++i) {
      const char* comma = i == 0 ? "" : ",";
      map += fmt::format("{}\"{}\":\"model-0.safetensors\"", comma, i);
      header += fmt::format("{}\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", comma, i);
    }
    auto folder = std::make_unique<TemporaryFolder>();
    folder->Write("config.json", testing::ToConfigJson(TinyConfig()));
    folder->Write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
    header = "{" + header + "}";
    folder->Write("model-0.safetensors", testing::Raw(static_cast<uint64_t>(header.size())) + header);
    return folder;
  };
  const auto open = [](const std::unique_ptr<TemporaryFolder>& folder) {
    EXPECT_THAT(OpenError(folder->path()), HasSubstr("tensor \"lm_head.weight\" of shape [40, 32] is missing"));
  };
  EXPECT_LT(testing::WorkGrowth(1000, make_folder, open), testing::kMaxProportionalGrowth);
}

TEST(CheckpointTest, WorkIsProportionalToTheListOfEndIds) {
  const auto make_folder = [](int count) {
    ModelConfig config = TinyConfig();
    config.vocab_size = count;
    config.tie_embeddings = true;
    std::string ids = "0";
    for (int i = 1; i < count; ++i) ids += fmt::format(",{}", i);
    auto folder = std::make_unique<TemporaryFolder>();
    folder->Write("config.json", testing::ToConfigJson(config));
    folder->Write("generation_config.json", "{\"eos_token_id\":[" + ids + "]}");
    folder->Write("model.safetensors", testing::ToSafetensors(RandomModel(config, 15)));
    folder->Write("tokenizer.json", kTokenizerJson);
    return folder;
  };
  const auto open = [](const std::unique_ptr<TemporaryFolder>& folder) { EXPECT_TRUE(Checkpoint::Open(folder->path()).ok()); };
  EXPECT_LT(testing::WorkGrowth(5000, make_folder, open), testing::kMaxProportionalGrowth);
}

// The default model, where `scripts/demo` has fetched it.
TEST(CheckpointTest, DefaultModel) {
  const char* home = std::getenv("HOME");
  const std::string path = std::string(home ? home : "") + "/.cache/coppice/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there; scripts/demo fetches it";
  const auto opened = Checkpoint::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  const Checkpoint& checkpoint = **opened;
  const ModelConfig& config = checkpoint.config();
  EXPECT_EQ(config.hidden_size, 576);
  EXPECT_EQ(config.num_layers, 30);
  EXPECT_EQ(config.num_qo_heads, 9);
  EXPECT_EQ(config.num_kv_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.vocab_size, 49152);
  EXPECT_EQ(config.rope.theta, 100000.0f);
  EXPECT_TRUE(config.tie_embeddings);
  EXPECT_EQ(checkpoint.SuitableHalf(), DType::kF16) << "quantised";
  EXPECT_EQ(checkpoint.tokenizer().value().pre_tokenizer, "smollm");
  EXPECT_EQ(checkpoint.tokenizer()->merges.size(), 48900u);
  for (const auto& [name, shape] : ExpectedWeights(config)) {
    for (const float value : LoadF32(checkpoint, name, shape.size() == 1 ? 1 : shape[0], shape.back())) {
      ASSERT_TRUE(std::abs(value) < 100.0f) << name;
    }
  }
}

}  // namespace
}  // namespace coppice
