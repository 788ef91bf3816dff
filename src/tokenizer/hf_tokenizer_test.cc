#include "tokenizer/hf_tokenizer.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "core/check.h"
#include "tokenizer/regex.h"
#include "tokenizer/regex_syntax.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/testing/test_fixtures.h"

namespace coppice {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;
using TokenKind = TokenizerData::TokenKind;

// "<0x0A>" for 10.
std::string ByteToken(int byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">";
}

Json Small() {
  return Json::parse(R"({
    "added_tokens": [{"id": 4, "content": "<s>", "special": true}, {"id": 6, "content": "<tool>", "special": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}}]},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "1": 3}, "merges": [["a", "b"]], "ignore_merges": true}})");
}

TEST(HuggingFaceTokenizer, ReadsWhatTheFilesSay) {
  const auto data = ParseHuggingFaceTokenizer(Small().dump(), {.tokenizer_config = R"({"bos_token": "<s>",
      "eos_token": {"content": "<tool>"}, "pad_token": null, "chat_template": "{{ x }}"})"});
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(data->model, "bpe");
  EXPECT_EQ(data->tokens, (std::vector<std::string>{"a", "b", "ab", "1", "<s>", "", "<tool>"}));
  EXPECT_EQ(data->kinds, (std::vector<TokenKind>{TokenKind::kNormal, TokenKind::kNormal, TokenKind::kNormal, TokenKind::kNormal,
                                                 TokenKind::kControl, TokenKind::kUnused, TokenKind::kUserDefined}));
  EXPECT_TRUE(data->add_bos);
  EXPECT_FALSE(data->add_eos);
  EXPECT_EQ(data->bos_id, 4);
  EXPECT_EQ(data->eos_ids, Ids{6});
  EXPECT_EQ(data->pad_id, -1);
  EXPECT_TRUE(data->ignore_merges);
  EXPECT_EQ(data->chat_template, "{{ x }}");
  EXPECT_EQ(*CreateTokenizer(*data).value()->Encode("ab1<tool>"), (Ids{4, 2, 3, 6}));
}

TEST(HuggingFaceTokenizer, TemplatesByName) {
  const auto data =
      ParseHuggingFaceTokenizer(Small().dump(), {.tokenizer_config = R"({"chat_template": [{"name": "tool_use", "template": "t"},
      {"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]})"});
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  const auto tokenizer = CreateTokenizer(*data).value();
  EXPECT_EQ(tokenizer->info().chat_template, "d");
  EXPECT_EQ(tokenizer->info().tool_chat_template, "t");
}

TEST(HuggingFaceTokenizer, FixtureEncodesAsTheKindItSpells) {
  const auto expected = Json::parse(ReadFixture("expected_ids.json"));
  const auto tokenizer = CreateTokenizer(FixtureData()).value();
  for (size_t i = 0; i < expected["texts"].size(); ++i) {
    EXPECT_EQ(*tokenizer->Encode(expected["texts"][i].get<std::string>()), expected["ids"]["qwen2"][i].get<Ids>()) << "text " << i;
  }
}

TEST(HuggingFaceTokenizer, PreTokenizerSequences) {
  const auto encode = [](const char* pre_tokenizer, const char* text) {
    Json json = Small();
    json["pre_tokenizer"] = Json::parse(pre_tokenizer);
    json["post_processor"] = nullptr;
    const auto data = ParseHuggingFaceTokenizer(json.dump(), {});
    EXPECT_TRUE(data.ok()) << data.status().ToString();
    return *CreateTokenizer(*data).value()->Encode(text);
  };
  const char* byte_level = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  const auto sequence = [&](const std::string& steps) {
    return R"({"type": "Sequence", "pretokenizers": [)" + steps + byte_level + "]}";
  };
  EXPECT_EQ(encode(byte_level, "ab"), Ids{2});
  EXPECT_EQ(encode(sequence(R"({"type": "Split", "pattern": {"String": "b"}, "behavior": "Isolated"},)").c_str(), "ab"),
            (Ids{0, 1}));
  EXPECT_EQ(encode(sequence(R"({"type": "Split", "pattern": {"Regex": "[ab]"}, "behavior": "Isolated"},)").c_str(), "ab"),
            (Ids{0, 1}));
  EXPECT_EQ(encode(sequence(R"({"type": "Digits", "individual_digits": true},)").c_str(), "ab11"), (Ids{2, 3, 3}));
  // A literal is no regex.
  EXPECT_EQ(encode(sequence(R"({"type": "Split", "pattern": {"String": "."}, "behavior": "Isolated"},)").c_str(), "ab"), Ids{2});
}

// As transformers 5.24 does: <b> and <e> get the next ids.
TEST(HuggingFaceTokenizer, SpecialTokensThatTheFileDoesNotHave) {
  const auto data = ParseHuggingFaceTokenizer(
      Small().dump(), {.tokenizer_config = R"({"pad_token": "[PAD]", "eos_token": {"content": "<e>"}, "bos_token": "<b>"})"});
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(data->bos_id, 4) << "the post-processor's";
  EXPECT_EQ(data->eos_ids, Ids{8});
  EXPECT_EQ(data->pad_id, -1);
  EXPECT_EQ(data->tokens.size(), 9u);
  const auto tokenizer = CreateTokenizer(*data).value();
  EXPECT_EQ(*tokenizer->Encode("ab<b>1<e>"), (Ids{4, 2, 7, 3, 8}));
  EXPECT_EQ(tokenizer->Decode(Ids{7, 0, 8}), "a") << "special tokens";
}

// As transformers 5.24 does: what the file has keeps its id and gets the properties of the list, the others get the next ids, by
// the order of those listed.
TEST(HuggingFaceTokenizer, AddedTokensThatTheConfigLists) {
  const Result<TokenizerData> data = ParseHuggingFaceTokenizer(Small().dump(), {.tokenizer_config = R"({"eos_token": "<e>",
      "added_tokens_decoder": {"10": {"content": "<x>", "special": true}, "9": {"content": "<y>", "rstrip": true},
                               "4": {"content": "<s>", "special": false}, "3": {"content": "ab", "special": true}}})"});
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(data->tokens.size(), 10u);
  EXPECT_EQ(data->eos_ids, Ids{9});
  const auto tokenizer = CreateTokenizer(*data).value();
  EXPECT_EQ(*tokenizer->Encode("ab<x>1<y> b<e>"), (Ids{4, 2, 8, 3, 7, 1, 9}));
  EXPECT_EQ(tokenizer->Decode(Ids{4, 0, 8, 7, 2, 9}), "<s>a<y>") << "special tokens";
  EXPECT_EQ(
      ParseHuggingFaceTokenizer(Small().dump(), {.tokenizer_config = R"({"added_tokens_decoder": {"x": {}}})"}).status().message(),
      "tokenizer_config.json: an id in added_tokens_decoder is \"x\"; expected an integer");
}

// As transformers 5.24 does: the map counts, and before the config, where the config has no added_tokens_decoder.
TEST(HuggingFaceTokenizer, SpecialTokensMap) {
  Json plain = Small();
  plain["post_processor"] = nullptr;  // which would name bos
  const auto read = [&](const char* config, const char* map) {
    return ParseHuggingFaceTokenizer(plain.dump(), {.tokenizer_config = config, .special_tokens_map = map}).value();
  };
  const char* map = R"({"bos_token": "<s>", "eos_token": {"content": "<tool>", "lstrip": false}, "pad_token": "<tool>"})";
  for (const char* config : {"", "{}", R"({"eos_token": null})", R"({"eos_token": "<s>"})", R"({"added_tokens_decoder": null})"}) {
    const TokenizerData data = read(config, map);
    EXPECT_EQ(data.bos_id, 4) << config;
    EXPECT_EQ(data.eos_ids, Ids{6}) << config;
    EXPECT_EQ(data.pad_id, 6) << config;
    EXPECT_EQ(data.tokens.size(), 7u) << config;
  }
  EXPECT_EQ(read(R"({"eos_token": "<tool>"})", R"({"bos_token": "<s>"})").eos_ids, Ids{6}) << "the map says nothing of it";
  EXPECT_EQ(read(R"({"eos_token": "<tool>"})", R"({"eos_token": null})").eos_ids, Ids{});
  EXPECT_EQ(read("", R"({"eos_token": "<e>"})").eos_ids, Ids{7}) << "the next id";
  for (const char* config :
       {R"({"added_tokens_decoder": {}})", R"({"added_tokens_decoder": {"4": {"content": "<s>", "special": true}}})"}) {
    const TokenizerData data = read(config, map);
    EXPECT_EQ(data.bos_id, -1) << config;
    EXPECT_EQ(data.eos_ids, Ids{}) << config;
    EXPECT_EQ(data.pad_id, -1) << config;
  }
  // The post-processor's bos stays.
  EXPECT_EQ(ParseHuggingFaceTokenizer(Small().dump(), {.special_tokens_map = R"({"bos_token": "a"})"}).value().bos_id, 4);
  const Status damaged = ParseHuggingFaceTokenizer(plain.dump(), {.special_tokens_map = "[1]"}).status();
  EXPECT_EQ(damaged.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(damaged.message(), "special_tokens_map.json (3 bytes) is not a JSON object; the file is damaged, download it again");
}

TEST(HuggingFaceTokenizer, AddedTokensBeyondTheModel) {
  const auto fit = [](const Json& json, const char* config, int32_t vocab_size) -> Result<TokenizerData> {
    COPPICE_ASSIGN_OR_RETURN(TokenizerData data, ParseHuggingFaceTokenizer(json.dump(), {.tokenizer_config = config}));
    COPPICE_RETURN_IF_ERROR(DropAddedTokensBeyond(vocab_size, &data));
    return data;
  };
  const char* config = R"({"bos_token": "<s>", "eos_token": "<tool>", "pad_token": "<tool>"})";
  EXPECT_EQ(fit(Small(), config, 7)->eos_ids, Ids{6});
  for (const int32_t vocab_size : {5, 6}) {  // 5 is an id without a token
    const auto data = fit(Small(), config, vocab_size);
    ASSERT_TRUE(data.ok()) << data.status().ToString();
    EXPECT_EQ(data->tokens.size(), static_cast<size_t>(vocab_size));
    EXPECT_EQ(data->eos_ids, Ids{});
    EXPECT_EQ(data->pad_id, -1);
    EXPECT_EQ(*CreateTokenizer(*data).value()->Encode("ab<s>1<tool>ab"), (Ids{4, 2, 4, 3, 2})) << "no token for the text <tool>";
  }
  const auto failure = [&](const Json& json, int32_t vocab_size) { return fit(json, config, vocab_size).status().message(); };
  EXPECT_EQ(
      failure(Small(), 4),
      "the bos token, which the tokenizer puts before each text, has id 4, but config.json says \"vocab_size\" 4; expected an id "
      "below it");
  EXPECT_EQ(failure(Small(), 3), "token \"1\" has id 3, but config.json says \"vocab_size\" 3; expected an id below it");

  const Json unigram = Json::parse(R"({"added_tokens": [{"id": 3, "content": "<x>", "special": true}], "decoder": {"type": "Fuse"},
      "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["<", -2.0]]}})");
  EXPECT_EQ(*CreateTokenizer(fit(unigram, "", 4).value()).value()->Encode("a<x>"), (Ids{1, 3}));
  EXPECT_EQ(*CreateTokenizer(fit(unigram, "", 3).value()).value()->Encode("a<x>"), (Ids{1, 2, 0}));
}

Result<std::unique_ptr<Tokenizer>> SentencePieceTokenizer(const TokenizerConfigFiles& files) {
  COPPICE_ASSIGN_OR_RETURN(TokenizerData data, ParseSentencePieceModel(ReadFixture("pypi/spm-bpe-llama.model")));
  COPPICE_RETURN_IF_ERROR(AddHuggingFaceConfig(files, &data));
  return CreateTokenizer(std::move(data));
}

// Expected ids: transformers 5.24, LlamaTokenizer where "legacy" is false, else the class of no name.
TEST(HuggingFaceTokenizer, SentencePieceWithAddedTokensDecoder) {
  const auto llama = SentencePieceTokenizer({.tokenizer_config = R"({"add_bos_token": true, "legacy": false, "bos_token": "<s>",
      "added_tokens_decoder": {"0": {"content": "<unk>", "special": true}, "1": {"content": "<s>", "special": true},
      "2": {"content": "</s>", "special": true}, "600": {"content": "<|im_start|>", "special": true},
      "601": {"content": "<|im_end|>", "special": false, "normalized": true}}, "pad_token": "<|im_start|>"})",
                                             .added_tokens = R"({"hello": 602})"});
  ASSERT_TRUE(llama.ok()) << llama.status().ToString();
  EXPECT_EQ(*(*llama)->Encode("hi"), (Ids{1, 341, 281}));
  EXPECT_EQ(*(*llama)->Encode("a<s> b</s>"), (Ids{1, 265, 1, 296, 2}));
  EXPECT_EQ(*(*llama)->Encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>"),
            (Ids{1, 600, 351, 349, 262, 13, 266, 352, 352, 345, 601, 13, 600}));
  EXPECT_EQ((*llama)->Decode(Ids{600, 341, 281, 601}), "hi<|im_end|>");

  const auto legacy = SentencePieceTokenizer({.tokenizer_config = R"({"add_bos_token": false, "added_tokens_decoder": {
      "600": {"content": "<|im_start|>", "special": true}, "601": {"content": "<|im_end|>", "special": true}}})"});
  ASSERT_TRUE(legacy.ok()) << legacy.status().ToString();
  EXPECT_EQ(*(*legacy)->Encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>"),
            (Ids{600, 341, 351, 349, 262, 13, 266, 352, 352, 345, 601, 341, 13, 600}));
  EXPECT_EQ(*(*legacy)->Encode("a<s> b</s>"), (Ids{265, 1, 259, 369, 2})) << "control tokens of the model itself";

  const auto failure = [](const char* config) { return SentencePieceTokenizer({.tokenizer_config = config}).status().message(); };
  EXPECT_EQ(failure(R"({"added_tokens_decoder": {"60x": {"content": "a"}}})"),
            "tokenizer_config.json: an id in added_tokens_decoder is \"60x\"; expected an integer");
  EXPECT_EQ(failure(R"({"added_tokens_decoder": {"-1": {"content": "a"}}})"),
            "tokenizer_config.json: an id in added_tokens_decoder is \"-1\"; expected an integer");
  EXPECT_EQ(failure(R"({"added_tokens_decoder": {"70000": {"content": "a"}}})"),
            "tokenizer_config.json: the id of token \"a\" is 70000; expected an integer from 0 to 66737");
}

// Expected ids: transformers 5.24, but for the bos, which version 4 adds.
TEST(HuggingFaceTokenizer, SentencePieceWithAddedTokensJson) {
  const char* added_tokens = R"({"<|im_start|>": 600, "<|im_end|>": 601})";
  const char* text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>";
  const Ids legacy_ids = {1, 600, 341, 351, 349, 262, 13, 266, 352, 352, 345, 601, 341, 13, 600};
  // Not named as special tokens, they are found in any text and shown.
  const auto plain = SentencePieceTokenizer({.added_tokens = added_tokens});
  ASSERT_TRUE(plain.ok()) << plain.status().ToString();
  EXPECT_EQ(*(*plain)->Encode(text), legacy_ids);
  EXPECT_EQ(*(*plain)->Encode(text, {.add_special = true, .parse_special = false}), legacy_ids);
  EXPECT_EQ((*plain)->Decode(Ids{600, 265, 2}), "<|im_start|> a");
  EXPECT_EQ(*(*plain)->Encode("a<s> b</s>"), (Ids{1, 265, 1, 259, 369, 2})) << "control tokens of the model itself";

  for (const TokenizerConfigFiles& files :
       {TokenizerConfigFiles{.tokenizer_config = R"({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})",
       .added_tokens = added_tokens},
        TokenizerConfigFiles{
            .tokenizer_config = R"({"eos_token": "</s>"})",
           .added_tokens = added_tokens,
           .special_tokens_map =
                R"({"eos_token": {"content": "<|im_end|>"}, "additional_special_tokens": [{"content": "<|im_start|>"}]})"}}) {
    const auto special = SentencePieceTokenizer(files);
    ASSERT_TRUE(special.ok()) << special.status().ToString();
    EXPECT_EQ(*(*special)->Encode(text), legacy_ids);
    EXPECT_EQ((*special)->info().eos_ids, Ids{601});
    EXPECT_EQ((*special)->Decode(Ids{600, 265, 601}), "a");
    const auto untrusted = *(*special)->Encode(text, {.add_special = false, .parse_special = false});
    EXPECT_TRUE(std::ranges::none_of(untrusted, [](int32_t id) { return id >= 600; }));
  }
  EXPECT_EQ(SentencePieceTokenizer({.added_tokens = R"({"x": -600})"}).status().message(),
            "added_tokens.json: the id of token \"x\" is -600; expected an integer from 0 to 66737");
}

// Expected ids: the tokenizers package, version 0.23.
TEST(HuggingFaceTokenizer, UnigramTextWithoutTokens) {
  Json vocab = Json::parse(R"([["<unk>", 0.0], ["<s>", 0.0], ["a", -1.0], [" ", -2.0]])");
  for (int byte = 0; byte < 256; ++byte) vocab.push_back({ByteToken(byte), -20.0});
  const Json json = {{"normalizer", {{"type", "Lowercase"}}},
                     {"decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
                     {"model", {{"type", "Unigram"}, {"unk_id", 0}, {"byte_fallback", true}, {"vocab", vocab}}}};
  const auto data = ParseHuggingFaceTokenizer(json.dump(), {});
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  const auto tokenizer = CreateTokenizer(*data).value();
  EXPECT_EQ(*tokenizer->Encode("ab"), (Ids{2, 102}));
  EXPECT_EQ(*tokenizer->Encode("a<S>a"), (Ids{2, 1, 2}));    // in the model's vocabulary as any other
  EXPECT_EQ(*tokenizer->Encode("a<Unk>a"), (Ids{2, 0, 2}));  // alone it is a token, beside unknown text it is unknown text
  EXPECT_EQ(*tokenizer->Encode("a\n<Unk>\na"), (Ids{2, 14, 64, 121, 114, 111, 66, 14, 2}));
  EXPECT_EQ(*tokenizer->Encode("<unk>é"), (Ids{64, 121, 114, 111, 66, 199, 173}));
}

TEST(HuggingFaceTokenizer, WordsAsOnigurumaMeansThem) {
  const auto is_word = [](const char* text) {
    const auto regex = Regex::Compile(OnigurumaPattern(R"(^\w+$)"));
    EXPECT_TRUE(regex.ok());
    auto scratch = Regex::Scratch::Create();
    EXPECT_TRUE(scratch.ok());
    std::optional<Regex::Match> match;
    EXPECT_TRUE(regex->Find(text, 0, *scratch, &match).ok());
    return match.has_value();
  };
  for (const char* text : {"a", "ß", "é", "e\u0301", "日", "٣", "_", "‿", "½", "²", "Ⅳ", "ⓐ", "🅐"})
    EXPECT_TRUE(is_word(text)) << text;
  for (const char* text : {" ", "-", "①", "৴", "™", "🙂", "§"}) EXPECT_FALSE(is_word(text)) << text;
}

TEST(HuggingFaceTokenizer, RefusesByName) {
  const auto failure = [](const char* patch, const char* config = "") {
    Json json = Small();
    json.merge_patch(Json::parse(patch));
    const auto data = ParseHuggingFaceTokenizer(json.dump(), {.tokenizer_config = config});
    return data.ok() ? "parsed" : data.status().ToString();
  };
  const auto expect = [](const std::string& message, const char* code, const char* part) {
    EXPECT_EQ(message.rfind(code, 0), 0u) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(failure(R"({"model": {"type": "WordPiece"}})"), "UNIMPLEMENTED", "WordPiece");
  expect(failure(R"({"model": {"type": "Unigram"}})"), "INVALID_ARGUMENT", "a list of tokens and their scores");
  expect(failure(R"({"model": {"unk_token": "<none>"}})"), "INVALID_ARGUMENT", "model.unk_token");
  expect(failure(R"({"model": {"dropout": 0.1}})"), "UNIMPLEMENTED", "dropout");
  expect(failure(R"({"normalizer": {"type": "BertNormalizer"}})"), "UNIMPLEMENTED", "BertNormalizer");
  expect(failure(R"({"pre_tokenizer": {"type": "UnicodeScripts"}})"), "UNIMPLEMENTED", "UnicodeScripts");
  expect(failure(R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "*"}})"), "INVALID_ARGUMENT", "base64");
  expect(failure(R"({"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "Odd"}})"), "UNIMPLEMENTED", "Odd");
  expect(failure(R"({"pre_tokenizer": null})"), "UNIMPLEMENTED", "without decoder");
  expect(failure(R"({"decoder": {"type": "WordPiece"}})"), "UNIMPLEMENTED", "WordPiece");
  expect(failure(R"({"decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 1}})"), "UNIMPLEMENTED", "Strip");
  expect(failure(R"({"decoder": {"type": "Metaspace", "prepend_scheme": "odd"}})"), "UNIMPLEMENTED", "prepend_scheme");
  expect(failure(R"({"post_processor": {"type": "OddProcessing"}})"), "UNIMPLEMENTED", "OddProcessing");
  expect(failure(R"({"post_processor": {"type": "BertProcessing", "cls": ["<s>", 70], "sep": ["<s>", 4]}})"), "INVALID_ARGUMENT",
         "cls is 70");
  expect(failure(R"({"added_tokens": [{"id": 2, "content": "<s>"}]})"), "INVALID_ARGUMENT", "id 2");
  expect(failure(R"({"added_tokens": [{"id": -2, "content": "<s>"}]})"), "INVALID_ARGUMENT", "-2");
  // One id must not make a vocabulary of millions.
  expect(failure(R"({"added_tokens": [{"id": 16777215, "content": "x"}]})"), "INVALID_ARGUMENT",
         "\"x\" is 16777215; expected an integer from 0 to 65545");
  expect(failure(R"({"model": {"vocab": {"far": 65550}}})"), "INVALID_ARGUMENT", "\"far\" is 65550; expected an integer from 0 to");
  const auto post_processor = [&](const char* id) {
    const std::string start = R"({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}], )";
    return failure((start + R"("special_tokens": {"<s>": {"ids": [)" + id + "]}}}}").c_str());
  };
  expect(post_processor("4294967297"), "INVALID_ARGUMENT", "4294967297");  // 1 in 32 bits
  expect(post_processor("-5"), "INVALID_ARGUMENT", "is -5; expected an integer from 0 to 6");
  expect(post_processor("7"), "INVALID_ARGUMENT", "is 7; expected an integer from 0 to 6");
  expect(post_processor("1.5"), "INVALID_ARGUMENT", "1.5");
  expect(failure(R"({"model": {"merges": ["a b c"]}})"), "INVALID_ARGUMENT", "merge 0");
  expect(failure(R"({"model": {"vocab": 3}})"), "INVALID_ARGUMENT", "model.vocab");
  expect(failure("{}", "[1"), "INVALID_ARGUMENT", "tokenizer_config.json");
  const std::string deep = R"({"model": {"type": )" + std::string(200000, '[') + std::string(200000, ']') + "}}";
  expect(ParseHuggingFaceTokenizer(deep, {}).status().ToString(), "INVALID_ARGUMENT", "nested deeper than 64");
  expect(ParseHuggingFaceTokenizer("{\"model\":", {}).status().ToString(), "INVALID_ARGUMENT", "tokenizer.json");
}

}  // namespace
}  // namespace coppice
