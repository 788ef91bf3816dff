// Bodies of OpenAI requests and responses: every field's way into the engine's request, what is refused, the shape of answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/grammar_compiler.h"
#include "openai/answer_size.h"
#include "openai/batch_input.h"
#include "openai/logprobs.h"
#include "openai/prompt_fields.h"
#include "openai/request.h"
#include "openai/response_body.h"
#include "tokenizer/tokenizer.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr int32_t kContext = 100;

// A token a byte; chats are written role by role.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer()
      : Tokenizer({.chat_template = "{% for message in messages %}{{ message['role'] }}:{{ message['content'] }};{% endfor %}"}) {}
  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<int32_t> ids;
    if (options.add_special) ids.push_back(1);
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    return ids;
  }
  std::string_view TokenBytes(int32_t id, bool) const override {
    static const std::string all = [] {
      std::string bytes;
      for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
      return bytes;
    }();
    return std::string_view(all).substr(static_cast<size_t>(id), 1);
  }
};

class OpenAiRequestTest : public ::testing::Test {
 protected:
  OpenAiRequest Parsed(Endpoint endpoint, const json& body) {
    BodyError error;
    std::optional<OpenAiRequest> parsed = parser_.Parse(endpoint, body, &error);
    EXPECT_TRUE(parsed) << error.status.message();
    return parsed.value_or(OpenAiRequest());
  }
  BodyError Refused(Endpoint endpoint, const json& body) {
    BodyError error;
    EXPECT_FALSE(parser_.Parse(endpoint, body, &error)) << body;
    EXPECT_FALSE(error.status.ok());
    return error;
  }

  ByteTokenizer tokenizer_;
  OpenAiRequestParser parser_{&tokenizer_, kContext};
};

TEST_F(OpenAiRequestTest, EveryFieldOfACompletion) {
  const OpenAiRequest parsed = Parsed(Endpoint::kCompletions, json::parse(R"({
    "model": "m", "prompt": "ab", "n": 3, "best_of": 5, "max_tokens": 7, "temperature": 0.5, "top_p": 0.25, "seed": -1, "stop": ["x", "yz"],
    "logprobs": 0, "echo": true, "stream": false, "presence_penalty": 1, "frequency_penalty": -1.5, "logit_bias": {"5": -100}, "user": "u",
    "top_k": 9, "min_p": 0.125, "repetition_penalty": 1.25, "min_tokens": 2, "ignore_eos": true, "stop_token_ids": [8, 9], "cache_salt": "s",
    "cache_private_begin": 4, "timeout": 2.5, "return_token_ids": true, "suffix": null})"));
  EXPECT_EQ(parsed.text, "ab");
  EXPECT_TRUE(parsed.logprobs);
  EXPECT_TRUE(parsed.return_token_ids);
  EXPECT_EQ(parsed.max_tokens, 7);
  const Request& request = parsed.request;
  EXPECT_EQ(request.n, 5);
  EXPECT_EQ(parsed.choices, 3);
  EXPECT_TRUE(request.echo);
  EXPECT_TRUE(request.prompt_logprobs);
  EXPECT_EQ(request.min_tokens, 2);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_THAT(request.stop, ElementsAre("x", "yz"));
  EXPECT_THAT(request.stop_token_ids, ElementsAre(8, 9));
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.cache_private_begin, 4);
  EXPECT_EQ(request.timeout_seconds, 2.5);
  EXPECT_EQ(request.top_logprobs, 0);
  EXPECT_FALSE(parsed.stream);
  const SamplingParams& sampling = request.sampling;
  EXPECT_EQ(sampling.temperature, 0.5f);
  EXPECT_EQ(sampling.top_p, 0.25f);
  EXPECT_EQ(sampling.top_k, 9);
  EXPECT_EQ(sampling.min_p, 0.125f);
  EXPECT_EQ(sampling.presence_penalty, 1.0f);
  EXPECT_EQ(sampling.frequency_penalty, -1.5f);
  EXPECT_EQ(sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(sampling.seed, ~uint64_t{0});
  EXPECT_THAT(sampling.logit_bias, ElementsAre(Pair(5, -100.0f)));
}

TEST_F(OpenAiRequestTest, Prompts) {
  EXPECT_THAT(*parser_.Encode(Parsed(Endpoint::kCompletions, {{"prompt", "ab"}})), ElementsAre(1, 'a', 'b'));
  EXPECT_THAT(*parser_.Encode(Parsed(Endpoint::kCompletions, {{"prompt", {7, 8}}})), ElementsAre(7, 8));
  EXPECT_THAT(*parser_.Encode(Parsed(Endpoint::kCompletions, {{"prompt", json::array({json::array({7, 8})})}})), ElementsAre(7, 8));
  EXPECT_THAT(*parser_.Encode(Parsed(Endpoint::kCompletions, {{"prompt", json::array({"a"})}})), ElementsAre(1, 'a'));
  for (const char* prompt : {R"([])", R"([[1], [2]])", R"(["a", "b"])", R"([1, "a"])", R"([1, -2])", R"([1.5])", R"(3)", R"({})"})
    EXPECT_EQ(Refused(Endpoint::kCompletions, {{"prompt", json::parse(prompt)}}).param, "prompt") << prompt;
  EXPECT_EQ(Refused(Endpoint::kCompletions, json::object()).param, "prompt");

  const OpenAiRequestParser without_tokenizer(nullptr, kContext);
  EXPECT_THAT(without_tokenizer.Encode(Parsed(Endpoint::kCompletions, {{"prompt", "ab"}})).status().message(),
              HasSubstr("no tokenizer; give the prompt as a list of token ids"));
}

TEST_F(OpenAiRequestTest, Chat) {
  const OpenAiRequest parsed = Parsed(Endpoint::kChatCompletions, json::parse(R"({"messages": [
      {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
      "max_completion_tokens": 5, "logprobs": true, "top_logprobs": 0, "response_format": {"type": "text"}})"));
  EXPECT_EQ(parsed.text, "system:s;user:ab;");
  EXPECT_THAT(
      *parser_.Encode(Parsed(Endpoint::kChatCompletions, json::parse(R"({"messages": [{"role": "user", "content": ""}]})"))),
      ElementsAre('u', 's', 'e', 'r', ':', ';'));  // no token before what the template writes
  EXPECT_EQ(parsed.max_tokens, 5);
  EXPECT_TRUE(parsed.logprobs);
  for (const char* messages : {R"([])", R"("hello")", R"([5])", R"([{"role": "user", "content": 5}])", R"([{"content": "a"}])",
                               R"([{"role": "u", "content": "a"}])", R"([{"role": "user", "content": [{"type": "image_url"}]}])",
                               R"([{"role": "user", "content": "a", "tool_calls": [{}]}])"})
    EXPECT_THAT(Refused(Endpoint::kChatCompletions, {{"messages", json::parse(messages)}}).param, HasSubstr("messages"))
        << messages;
  EXPECT_THAT(Refused(Endpoint::kChatCompletions, {{"prompt", "a"}}).status.message(), HasSubstr("messages"));

  BodyError error;
  EXPECT_FALSE(OpenAiRequestParser(nullptr, kContext)
                   .Parse(Endpoint::kChatCompletions, json::parse(R"({"messages": [{"role": "user", "content": "a"}]})"), &error));
  EXPECT_THAT(error.status.message(), HasSubstr("the model has no tokenizer; give the prompt to /v1/completions as a list"));
}

TEST_F(OpenAiRequestTest, WhatTheOutputMustLookLike) {
  if (GrammarCompiler::Create(tokenizer_, 256).status().code() == StatusCode::kUnimplemented) GTEST_SKIP() << "no XGrammar";
  const std::unique_ptr<GrammarCompiler> compiler = GrammarCompiler::Create(tokenizer_, 256).value();
  BodyError error;
  const auto parse = [&](const std::string& fields) {
    std::optional<OpenAiRequest> parsed =
        parser_.Parse(Endpoint::kCompletions, json::parse(R"({"prompt": "a", )" + fields + "}"), &error);
    if (!parsed || !parsed->output) return parsed;
    const auto compiled = compiler->Compile(parsed->output->source);
    if (compiled.ok()) {
      parsed->request.constraint = *compiled;
    } else {
      error = parsed->output->ErrorOf(compiled.status());
      parsed.reset();
    }
    return parsed;
  };
  for (
      const char* fields :
      {R"("response_format": {"type": "json_object"})", R"("regex": "a+")", R"("grammar": "root ::= \"a\"")",
       R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": {"type": "null"}}})"}) {
    const std::optional<OpenAiRequest> parsed = parse(fields);
    ASSERT_TRUE(parsed) << fields << error.status.message();
    ASSERT_TRUE(parsed->request.constraint) << fields;
    EXPECT_EQ(parsed->request.constraint->vocab_size(), 256);
  }
  EXPECT_FALSE(parse(R"("response_format": {"type": "text"})")->request.constraint);
  for (const auto& [fields, param, message] : std::vector<std::array<std::string, 3>>{
           {R"("response_format": {"type": "xml"})", "response_format", "expected an object whose type is"},
           {R"("response_format": "json_object")", "response_format", "expected an object whose type is"},
           {R"("response_format": {"type": "json_object", "schema": {}})", "response_format", "expected an object whose type is"},
           {R"("response_format": {"type": "json_schema"})", "response_format", "expected an object whose type is"},
           {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}, "x": 1}})", "response_format.json_schema.x",
            "x"},
           {R"("response_format": {"type": "json_schema", "json_schema": {"schema": [1]}})", "response_format",
            "expected a JSON schema"},
           {R"("regex": "(")", "regex", "the regex cannot be used"},
           {R"("regex": "((a{0,1000}){0,1000}){0,1000}")", "regex", "regex: the regex has about 1001001000 states"},
           {R"("regex": 5)", "regex", "expected a string"},
           {R"("grammar": "root")", "grammar", "the grammar cannot be used"},
           {R"("regex": "a", "response_format": {"type": "json_object"})", "regex", "keep one"}}) {
    EXPECT_FALSE(parse(fields)) << fields;
    EXPECT_EQ(error.param, param) << fields;
    EXPECT_THAT(error.status.message(), HasSubstr(message)) << fields;
  }
  EXPECT_FALSE(OpenAiRequestParser(nullptr, kContext).Parse(Endpoint::kCompletions, {{"prompt", {5}}, {"regex", "a"}}, &error));
  EXPECT_THAT(error.status.message(), HasSubstr("no text to constrain"));
}

TEST_F(OpenAiRequestTest, WithoutAReadableTokenizerTheReasonIsReported) {
  const OpenAiRequestParser parser(nullptr, kContext, Unimplemented("tokenizer.json: model type \"WordPiece\" is not supported"));
  BodyError error;
  const std::optional<OpenAiRequest> ids = parser.Parse(Endpoint::kCompletions, {{"prompt", {5, 6}}}, &error);
  ASSERT_TRUE(ids) << error.status.message();
  EXPECT_THAT(*parser.Encode(*ids), ElementsAre(5, 6));
  const std::optional<OpenAiRequest> text = parser.Parse(Endpoint::kCompletions, {{"prompt", "a"}}, &error);
  ASSERT_TRUE(text);
  EXPECT_THAT(parser.Encode(*text).status().message(), HasSubstr("\"WordPiece\" is not supported; give the prompt"));
  EXPECT_FALSE(parser.Parse(Endpoint::kChatCompletions, {{"messages", {{{"role", "user"}, {"content", "a"}}}}}, &error));
  EXPECT_THAT(error.status.message(), HasSubstr("\"WordPiece\" is not supported"));
  EXPECT_FALSE(parser.Parse(Endpoint::kCompletions, {{"prompt", {5}}, {"vote", "a"}}, &error));
  EXPECT_THAT(error.status.message(), HasSubstr("\"WordPiece\" is not supported"));
}

TEST_F(OpenAiRequestTest, WhatWouldChangeTheAnswerIsRefusedByName) {
  for (const char* field : {R"("suffix": "x")",
                            R"("stream": 1)",
                            R"("stream_options": 1)",
                            R"("echo": 1)",
                            R"("best_of": 0)",
                            R"("logprobs": 129)",
                            R"("logprobs": -1)",
                            R"("logprobs": true)",
                            R"("timeout": "1")",
                            R"("cache_private_begin": 0.5)",
                            R"("n": "2")",
                            R"("n": 1.5)",
                            R"("n": 4294967296)",
                            R"("temperature": "hot")",
                            R"("stop": [3])",
                            R"("logit_bias": {"a": 1})",
                            R"("logit_bias": [1])",
                            R"("seed": 1.5)",
                            R"("ignore_eos": 1)",
                            R"("tools": [1])",
                            R"("typical_p": 0.9)",
                            R"("repeat_penalty": 1.1)",
                            R"("guided_json": {"type": "object"})",
                            R"("skip_special_tokens": false)",
                            R"("max_new_tokens": 5)",
                            R"("prompt_logprobs": 129)",
                            R"("modalities": ["text", "audio"])",
                            R"("stop_token_ids": [-1])"}) {
    const BodyError error = Refused(Endpoint::kCompletions, json::parse(std::string(R"({"prompt": "a", )") + field + "}"));
    EXPECT_THAT(field, HasSubstr("\"" + error.param + "\"")) << error.status.message();
    EXPECT_THAT(error.status.message(), HasSubstr(error.param));
  }
  EXPECT_EQ(Refused(Endpoint::kCompletions, json::array()).param, "body");
  EXPECT_FALSE(ParseUrl("/v1/embeddings").ok());
  EXPECT_EQ(*ParseUrl("/v1/chat/completions"), Endpoint::kChatCompletions);
}

TEST_F(OpenAiRequestTest, BeamSearchAsOtherServersNameIt) {
  const auto beams = [&](Endpoint endpoint, json fields) {
    fields[IsChat(endpoint) ? "messages" : "prompt"] =
        IsChat(endpoint) ? json::parse(R"([{"role": "user", "content": "a"}])") : json("a");
    const OpenAiRequest parsed = Parsed(endpoint, fields);
    EXPECT_EQ(parsed.request.n, parsed.choices);  // nothing compares samples
    return parsed.request.beams;
  };
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChatCompletions}) {
    EXPECT_EQ(beams(endpoint, {{"n", 2}}).width, 0);
    EXPECT_EQ(beams(endpoint, {{"beam_width", 1}, {"length_penalty", 1}, {"early_stopping", false}}).width, 0);
    EXPECT_EQ(beams(endpoint, {{"use_beam_search", true}, {"n", 4}}).width, 4);
    EXPECT_EQ(beams(endpoint, {{"use_beam_search", true}, {"n", 2}, {"best_of", 6}}).width, 6);
    EXPECT_EQ(beams(endpoint, {{"beam_width", 8}, {"n", 2}}).width, 8);
    const BeamOptions all = beams(endpoint, {{"use_beam_search", true},
                                             {"beam_width", 3},
                                             {"length_penalty", 0.5},
                                             {"early_stopping", "never"},
                                             {"stochastic_beams", true},
                                             {"stream", true}});
    EXPECT_EQ(all.width, 3);
    EXPECT_EQ(all.length_penalty, 0.5f);
    EXPECT_EQ(all.early_stopping, EarlyStopping::kNever);
    EXPECT_TRUE(all.stochastic);
    EXPECT_EQ(beams(endpoint, {{"beam_width", 2}, {"early_stopping", true}}).early_stopping, EarlyStopping::kTrue);
  }
  for (const auto& [field, value] : std::vector<std::pair<std::string, json>>{{"length_penalty", 2},
                                                                              {"early_stopping", true},
                                                                              {"stochastic_beams", true},
                                                                              {"use_beam_search", 1},
                                                                              {"early_stopping", 1}}) {
    EXPECT_EQ(Refused(Endpoint::kCompletions, {{"prompt", "a"}, {field, value}}).param, field);
  }
  EXPECT_EQ(Refused(Endpoint::kCompletions, {{"prompt", "a"}, {"use_beam_search", true}, {"beam_width", 0}}).param, "beam_width");
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChatCompletions}) {
    EXPECT_EQ(beams(endpoint, {{"use_beam_search", false}, {"n", 2}}).width, 0);
    EXPECT_EQ(beams(endpoint, {{"use_beam_search", false}, {"beam_width", 1}}).width, 0);
  }
  const BodyError both = Refused(Endpoint::kCompletions, {{"prompt", "a"}, {"use_beam_search", false}, {"beam_width", 3}});
  EXPECT_EQ(both.param, "use_beam_search");
  EXPECT_THAT(both.status.message(), HasSubstr("use_beam_search is false and beam_width is 3"));
  for (const char* const field : {"logprobs", "prompt_logprobs"})
    EXPECT_EQ(Refused(Endpoint::kCompletions, {{"prompt", "a"}, {"beam_width", 2}, {field, 1}}).param, field);
  EXPECT_TRUE(Parsed(Endpoint::kCompletions, {{"prompt", "a"}, {"beam_width", 2}, {"logprobs", 0}}).logprobs);
  // A penalty of the model's generation_config.json is for samples; one of the body is the engine's to refuse.
  const OpenAiRequestParser parser(&tokenizer_, kContext, OkStatus(), 0, {.sampling = {.repetition_penalty = 1.1f}});
  BodyError error;
  const json body = {{"prompt", "a"}, {"beam_width", 4}};
  EXPECT_EQ(parser.Parse(Endpoint::kCompletions, body, &error)->request.sampling.repetition_penalty, 1);
}

TEST_F(OpenAiRequestTest, Streams) {
  const OpenAiRequest parsed =
      Parsed(Endpoint::kCompletions, {{"prompt", "a"}, {"stream", true}, {"stream_options", {{"include_usage", true}}}});
  EXPECT_TRUE(parsed.stream);
  EXPECT_TRUE(parsed.include_usage);
  EXPECT_FALSE(Parsed(Endpoint::kCompletions, {{"prompt", "a"}, {"stream", true}}).include_usage);
  for (const auto& [field, value] : std::vector<std::pair<std::string, json>>{
           {"best_of", 2}, {"rank", true}, {"dedup", true}, {"vote", "a"}, {"stream_options", 5}}) {
    json body = {{"prompt", "a"}, {"stream", true}};
    body[field] = value;
    EXPECT_EQ(Refused(Endpoint::kCompletions, body).param, field);
  }
  const auto refused_option = [&](const char* name) {
    return Refused(Endpoint::kCompletions, {{"prompt", "a"}, {"stream", true}, {"stream_options", {{name, 1}}}}).param;
  };
  EXPECT_EQ(refused_option("else"), "stream_options.else");
  EXPECT_EQ(refused_option(""), "stream_options");
}

TEST_F(OpenAiRequestTest, Alternatives) {
  const OpenAiRequest completion = Parsed(Endpoint::kCompletions, {{"prompt", "a"}, {"logprobs", 5}});
  EXPECT_TRUE(completion.logprobs);
  EXPECT_EQ(completion.request.top_logprobs, 5);
  json chat = {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"logprobs", true}, {"top_logprobs", 3}};
  EXPECT_EQ(Parsed(Endpoint::kChatCompletions, chat).request.top_logprobs, 3);
  chat["logprobs"] = false;
  EXPECT_EQ(Refused(Endpoint::kChatCompletions, chat).param, "top_logprobs");
}

// Members of one object, each under a name of its own.
TEST_F(OpenAiRequestTest, AlternativesOfACompletionHaveNamesOfTheirOwn) {
  class Alike final : public Tokenizer {
   public:
    Alike() : Tokenizer({}) {}
    Result<std::vector<int32_t>> Encode(std::string_view, const EncodeOptions&) const override { return std::vector<int32_t>(); }
    std::string_view TokenBytes(int32_t id, bool) const override {
      static constexpr std::string_view kTexts[] = {"a", "a", "\xF0\x9F", "\xF0", "", ""};
      return kTexts[id];
    }
  } tokenizer;
  CompletionLogprobs logprobs(&tokenizer, /*with_top=*/true, /*as_ids=*/false);
  std::vector<TokenLogprob> top;
  for (int32_t id = 0; id < 6; ++id) top.push_back({id, -1.0f - static_cast<float>(id)});
  std::string text;
  int64_t offset = 0;
  logprobs.Append(LogprobColumn::kTop, {.id = 0, .logprob = 0.0f, .top = &top}, &offset, &text);
  EXPECT_EQ(text, R"({"a":-1.0,"token_id:1":-2.0,"bytes:\\xf0\\x9f":-3.0,"bytes:\\xf0":-4.0,"":-5.0,"token_id:5":-6.0})");
}

TEST_F(OpenAiRequestTest, ListsOfPrompts) {
  BodyError error;
  const auto list = parser_.ParseList(Endpoint::kCompletions, json::parse(R"({"prompt": ["a", "b"], "n": 2})"), &error);
  ASSERT_TRUE(list) << error.status.message();
  ASSERT_EQ(list->size(), 2);
  EXPECT_EQ((*list)[0].text, "a");
  EXPECT_EQ((*list)[1].text, "b");
  EXPECT_EQ((*list)[1].choices, 2);
  const auto ids = parser_.ParseList(Endpoint::kCompletions, json::parse(R"({"prompt": [[1, 2], "b"]})"), &error);
  ASSERT_TRUE(ids) << error.status.message();
  EXPECT_THAT((*ids)[0].prompt_ids, ElementsAre(1, 2));
  for (const char* body : {R"({"prompt": [[1], []]})", R"({"prompt": ["a", 5]})", R"({"prompt": [[["a"]]]})"}) {
    EXPECT_FALSE(parser_.ParseList(Endpoint::kCompletions, json::parse(body), &error)) << body;
    EXPECT_EQ(error.param, "prompt");
  }
  EXPECT_FALSE(parser_.ParseList(Endpoint::kCompletions, {{"prompt", json(kMaxPrompts + 1, json("a"))}}, &error));
  json many = {{"prompt", json(kMaxPrompts, json("a"))}, {"stop", json(64, json(std::string(1000, 's')))}};
  EXPECT_FALSE(parser_.ParseList(Endpoint::kCompletions, many, &error)) << "a copy for each prompt";
  EXPECT_EQ(error.param, "prompt");
  EXPECT_THAT(error.status.message(), HasSubstr("bytes, for each of 2048 prompts; expected 16777216"));
  many["prompt"] = {"a", "b"};
  EXPECT_TRUE(parser_.ParseList(Endpoint::kCompletions, many, &error)) << error.status.message();
  EXPECT_FALSE(parser_.ParseList(Endpoint::kCompletions, json::parse(R"({"prompt": ["a", "b"], "vote": "x"})"), &error));
  EXPECT_EQ(error.param, "vote");
}

TEST_F(OpenAiRequestTest, TokenLimitByDefault) {
  const auto limit = [&](OpenAiRequest parsed) {
    parser_.SetPrompt({1, 2, 3}, &parsed);
    return parsed.request.max_tokens;
  };
  const json chat = {{"messages", {{{"role", "user"}, {"content", "a"}}}}};
  EXPECT_EQ(limit(Parsed(Endpoint::kCompletions, {{"prompt", "a"}})), 16);
  EXPECT_EQ(limit(Parsed(Endpoint::kCompletions, {{"prompt", "a"}, {"max_tokens", 2}})), 2);
  EXPECT_EQ(limit(Parsed(Endpoint::kChatCompletions, chat)), kContext - 3);
}

json BodyOf(const OpenAiRequest& request, const RequestOutput& output, const ResponseFacts& facts, const Tokenizer* tokenizer) {
  TokenUsage usage = {.prompt = 4, .cached = 3, .shared_reads = {.kv_bytes_not_read = 640, .tokens = 5, .sharers = 2}};
  for (const Sample& sample : output.samples) usage.completion += std::ssize(sample.token_ids);
  return json::parse(TextOf(ResponseBody({{request, output, usage}}, facts, tokenizer).get()));
}

TEST(OpenAiResponseTest, CompletionAndChat) {
  const ByteTokenizer tokenizer;
  const std::vector<Sample> samples = {
      {.index = 0, .text = "hé", .token_ids = {'h', 0xc3, 0xa9}, .logprobs = {-1, -2, -3}, .finish_reason = FinishReason::kStop}};
  const ResponseFacts facts = {.id = "7", .created = 5, .model = "m"};
  const RequestOutput output = {.samples = samples};
  OpenAiRequest request{.logprobs = true};
  const json completion = BodyOf(request, output, facts, &tokenizer);
  EXPECT_EQ(completion["id"], "cmpl-7");
  EXPECT_EQ(completion["object"], "text_completion");
  EXPECT_EQ(completion["usage"], json::parse(R"({"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7,
                                                 "prompt_tokens_details": {"cached_tokens": 3},
      "shared_prefix": {"tokens": 5, "sharers": 2, "kv_bytes_not_read": 640}})"));
  const json& choice = completion["choices"][0];
  EXPECT_EQ(choice["text"], "hé");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], json({-1, -2, -3}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], json({0, 1, 2}));
  EXPECT_FALSE(choice.contains("token_ids"));

  request.endpoint = Endpoint::kChatCompletions;
  const json chat = BodyOf(request, output, facts, &tokenizer);
  EXPECT_EQ(chat["object"], "chat.completion");
  EXPECT_EQ(chat["choices"][0]["message"], json::parse(R"({"role": "assistant", "content": "hé"})"));
  EXPECT_EQ(chat["choices"][0]["logprobs"]["content"][1]["bytes"], json({0xc3}));

  request = {};
  const json bare = BodyOf(request, output, facts, nullptr);
  EXPECT_EQ(bare["choices"][0]["token_ids"], json({'h', 0xc3, 0xa9}));  // the only thing there is to say without a tokenizer
  EXPECT_TRUE(bare["choices"][0]["logprobs"].is_null());
}

TEST(OpenAiResponseTest, AlternativesOfTokens) {
  const ByteTokenizer tokenizer;
  const RequestOutput output = {.samples = {{.text = "h",
                                             .token_ids = {'h'},
                                             .logprobs = {-1},
                                             .top_logprobs = {{{.token = 'i', .logprob = -0.5f}, {.token = 'h', .logprob = -1}}},
                                             .finish_reason = FinishReason::kStop}}};
  OpenAiRequest request{.logprobs = true};
  request.request.top_logprobs = 2;
  const json completion = BodyOf(request, output, {}, &tokenizer);
  EXPECT_EQ(completion["choices"][0]["logprobs"]["top_logprobs"], json::parse(R"([{"i": -0.5, "h": -1.0}])"));
  request.endpoint = Endpoint::kChatCompletions;
  const json chat = BodyOf(request, output, {}, &tokenizer);
  EXPECT_EQ(chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"],
            json::parse(R"([{"token": "i", "logprob": -0.5, "bytes": [105]}, {"token": "h", "logprob": -1.0, "bytes": [104]}])"));
}

TEST(OpenAiResponseTest, ChoicesOfSeveralPromptsFollowEachOther) {
  const ByteTokenizer tokenizer;
  const OpenAiRequest request{.choices = 1};
  std::vector<RequestOutput> outputs(2);
  for (int32_t i = 0; i < 2; ++i)
    outputs[i] = {.samples = {{.text = std::string(1, static_cast<char>('a' + i)),
                               .token_ids = {'a' + i},
                               .logprobs = {-1},
                               .finish_reason = FinishReason::kStop}}};
  const TokenUsage first = {.prompt = 3, .completion = 1}, second = {.prompt = 5, .cached = 1, .completion = 1};
  const json body =
      json::parse(TextOf(ResponseBody({{request, outputs[0], first}, {request, outputs[1], second}}, {}, &tokenizer).get()));
  ASSERT_EQ(body["choices"].size(), 2);
  EXPECT_EQ(body["choices"][1]["text"], "b");
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 8);
  EXPECT_EQ(body["usage"]["completion_tokens"], 2);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
}

TEST(OpenAiResponseTest, EchoAndBestOf) {
  const ByteTokenizer tokenizer;
  std::vector<Sample> samples(3);
  for (int32_t i = 0; i < 3; ++i)
    samples[i] = {.index = i,
                  .text = std::string(1, static_cast<char>('a' + i)),
                  .token_ids = {'a' + i},
                  .logprobs = {i == 1 ? -1.0f : -2.0f},
                  .finish_reason = FinishReason::kLength};
  OpenAiRequest request{.choices = 2, .logprobs = true, .return_token_ids = true};
  const EchoedPrompt prompt = {.text = "xy", .token_ids = {'x', 'y'}, .logprobs = {std::nullopt, -0.5f}};
  const json body = BodyOf(request, {.prompt = prompt, .samples = samples}, {}, &tokenizer);
  ASSERT_EQ(body["choices"].size(), 2);
  EXPECT_EQ(body["choices"][0]["text"], "xyb");  // the best of three first
  EXPECT_EQ(body["choices"][1]["text"], "xya");
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["choices"][0]["token_ids"], json({'x', 'y', 'b'}));
  EXPECT_EQ(body["choices"][0]["logprobs"], json::parse(R"({"tokens": ["x", "y", "b"], "token_logprobs": [null, -0.5, -1.0],
                                                          "top_logprobs": null, "text_offset": [0, 1, 2]})"));
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);  // what was generated
}

// The prompt that choices repeat is written once and then copied, in pieces that cut it anywhere.
TEST(OpenAiResponseTest, EchoedPromptsAreTheSameInAllChoices) {
  const ByteTokenizer tokenizer;
  EchoedPrompt prompt;
  constexpr int32_t kTokens = 8'000, kChoices = 3;
  for (int32_t i = 0; i < kTokens; ++i) {
    prompt.token_ids.push_back('a' + i % 26);
    prompt.text += static_cast<char>('a' + i % 26);
    prompt.logprobs.push_back(i == 0 ? std::nullopt : std::optional(-0.137f * static_cast<float>(i % 7)));
    prompt.top_logprobs.emplace_back();
    if (i > 0) prompt.top_logprobs.back() = {{.token = 'x', .logprob = -0.25f}, {.token = 'y', .logprob = -1.2345f}};
  }
  std::vector<Sample> samples;
  for (int32_t i = 0; i < kChoices; ++i) {
    samples.push_back({.index = i,
                       .text = "é\"",
                       .token_ids = {0xc3, 0xa9, '"'},
                       .logprobs = {-1, -2, -3},
                       .top_logprobs = {{{.token = 'i', .logprob = -0.5f}}, {}, {}},
                       .finish_reason = FinishReason::kLength});
  }
  for (const bool with_top : {false, true}) {
    OpenAiRequest request{.choices = kChoices, .logprobs = true, .return_token_ids = true};
    request.request.echo = true;
    request.request.top_logprobs = with_top ? 2 : 0;
    const std::unique_ptr<TextSource> source =
        ResponseBody({{request, {.prompt = prompt, .samples = samples}, kTokens}}, {}, &tokenizer);
    std::string text;
    for (bool more = true; more;) {
      std::string piece;
      more = source->Next(&piece);
      EXPECT_LE(piece.size(), kTextPiece + (size_t{1} << 16));
      text += piece;
    }
    const double estimate = AnswerBytes(
        request,
        {.choices = kChoices, .prompt_tokens = kTokens, .prompt_bytes = std::ssize(prompt.text), .output_tokens = kChoices * 3});
    EXPECT_GT(estimate, static_cast<double>(text.size()));
    EXPECT_LT(estimate, 3 * static_cast<double>(text.size()));
    const json body = json::parse(text);
    ASSERT_EQ(body["choices"].size(), kChoices);
    for (int32_t i = 0; i < kChoices; ++i) {
      const json& choice = body["choices"][i];
      EXPECT_EQ(choice["index"], i);
      EXPECT_TRUE(choice["text"] == prompt.text + "é\"");
      const json& logprobs = choice["logprobs"];
      EXPECT_TRUE(logprobs == body["choices"][0]["logprobs"]);
      ASSERT_EQ(logprobs["tokens"].size(), kTokens + 3);
      ASSERT_EQ(logprobs["token_logprobs"].size(), kTokens + 3);
      ASSERT_EQ(choice["token_ids"].size(), kTokens + 3);
      EXPECT_EQ(choice["token_ids"][kTokens + 1], 0xa9);
      for (const int32_t at : {0, 1, 777, kTokens - 1}) {
        EXPECT_EQ(logprobs["tokens"][at], std::string(1, prompt.text[at]));
        EXPECT_EQ(logprobs["token_logprobs"][at], at == 0 ? json() : json(*prompt.logprobs[at]));
        EXPECT_EQ(logprobs["text_offset"][at], at);
        if (with_top) {
          EXPECT_EQ(logprobs["top_logprobs"][at], at == 0 ? json() : json({{"x", -0.25}, {"y", -1.2345f}}));
        }
      }
      EXPECT_EQ(logprobs["text_offset"][kTokens + 2], kTokens + 1);  // é is one character of two tokens
      EXPECT_EQ(logprobs["token_logprobs"][kTokens + 2], -3);
      EXPECT_EQ(logprobs["top_logprobs"].is_null(), !with_top);
    }
  }
}

TEST(OpenAiResponseTest, AVoteThatCannotBeCountedIsNull) {
  const ByteTokenizer tokenizer;
  const std::vector<Sample> samples = {
      {.text = std::string(64, 'a'), .token_ids = {1}, .logprobs = {-1}, .finish_reason = FinishReason::kStop}};
  const OpenAiRequest request{.vote = "(a+)+$x|(a|a)*b"};
  const json body = BodyOf(request, {.samples = samples}, {}, &tokenizer);
  ASSERT_TRUE(body.contains("votes"));
  EXPECT_TRUE(body["votes"].is_null());
  EXPECT_EQ(body["choices"].size(), 1);
}

TEST(AnswerSize, GrowsWithWhatIsReported) {
  OpenAiRequest request{.endpoint = Endpoint::kCompletions};
  request.request.prompt_ids = std::vector<int32_t>(100, 1);
  request.request.n = 8;
  request.request.max_tokens = 1000;
  const AnswerExtent extent = LargestExtent(request, /*max_context=*/600);
  EXPECT_EQ(extent.choices, 8);
  EXPECT_EQ(extent.output_tokens, 8 * 500);
  double last = AnswerBytes(request, extent);
  const auto grows = [&](const char* what) {
    const double bytes = AnswerBytes(request, extent);
    EXPECT_GT(bytes, last) << what;
    last = bytes;
  };
  request.return_token_ids = true;
  grows("ids");
  request.logprobs = true;
  grows("logprobs");
  request.request.echo = true;
  grows("echo");
  request.request.top_logprobs = 20;
  grows("alternatives");
  request.endpoint = Endpoint::kChatCompletions;
  grows("a chat's form");
  request.stream = true;
  grows("the prompt's ids in each choice");
  // No product of large fields overflows.
  request.request.n = INT32_MAX;
  request.request.max_tokens = INT32_MAX;
  EXPECT_GT(AnswerBytes(request, LargestExtent(request, INT32_MAX)), 1e21);
  request.request.max_tokens = -1;  // the engine refuses it
  EXPECT_EQ(LargestExtent(request, 50).output_tokens, 0);
}

TEST(AnswerSize, RepeatedPrompts) {
  OpenAiRequest request{.choices = 4};
  request.request.n = 9;
  EXPECT_EQ(RepeatedTokens(request, 10), 0);
  request.request.echo = true;
  EXPECT_EQ(RepeatedTokens(request, 10), 30);
}

TEST(OpenAiResponseTest, RankedDistinctAndVoted) {
  const ByteTokenizer tokenizer;
  std::vector<Sample> samples;
  for (const auto& [text, logprob] :
       {std::pair("4", -3.0f), std::pair("it is 5", -1.0f), std::pair("4", -2.0f), std::pair("4.", -4.0f)})
    samples.push_back({.index = static_cast<int32_t>(samples.size()),
                       .text = text,
                       .token_ids = {1},
                       .logprobs = {logprob},
                       .finish_reason = FinishReason::kStop});
  OpenAiRequest request{.choices = 4, .rank = true, .deduplicate = true, .vote = "[0-9]"};
  const json body = BodyOf(request, {.samples = samples}, {}, &tokenizer);
  std::vector<std::string> texts;
  for (const json& choice : body["choices"]) texts.push_back(choice["text"]);
  EXPECT_THAT(texts, ElementsAre("it is 5", "4", "4."));
  EXPECT_EQ(body["votes"], json::parse(R"([{"answer": "4", "count": 3, "choices": [1, 2], "mean_logprob": -2.0},
                                           {"answer": "5", "count": 1, "choices": [0], "mean_logprob": -1.0}])"));
  samples[0].text = std::string(64, 'a');
  request.vote = "(a+)+$x|(a|a)*b";  // exceeds its match limit: the samples are answered all the same
  const json uncounted = BodyOf(request, {.samples = samples}, {}, &tokenizer);
  EXPECT_EQ(uncounted["choices"].size(), 4u);
  EXPECT_EQ(uncounted.at("votes"), nullptr);
  request = {.choices = 4};
  EXPECT_FALSE(BodyOf(request, {.samples = samples}, {}, &tokenizer).contains("votes"));
}

TEST_F(OpenAiRequestTest, Extensions) {
  const OpenAiRequest parsed =
      Parsed(Endpoint::kCompletions, {{"prompt", "a"}, {"rank", true}, {"dedup", true}, {"vote", "([0-9]+)"}, {"n", 2}});
  EXPECT_TRUE(parsed.rank);
  EXPECT_TRUE(parsed.deduplicate);
  EXPECT_EQ(parsed.vote, "([0-9]+)");
  EXPECT_EQ(Refused(Endpoint::kCompletions, {{"prompt", "a"}, {"vote", "("}}).param, "vote");
  EXPECT_EQ(Refused(Endpoint::kCompletions, {{"prompt", "a"}, {"rank", 1}}).param, "rank");
  BodyError error;
  EXPECT_FALSE(OpenAiRequestParser(nullptr, kContext).Parse(Endpoint::kCompletions, {{"prompt", {5}}, {"vote", "a"}}, &error));
  EXPECT_THAT(error.status.message(), HasSubstr("no tokenizer"));
}

TEST(OpenAiResponseTest, Errors) {
  const json error = ErrorBody(InvalidArgument("n is 0"), "n");
  EXPECT_EQ(error, json::parse(R"({"error": {"message": "n is 0", "type": "invalid_request_error", "param": "n", "code": null}})"));
  EXPECT_EQ(HttpStatus(InvalidArgument("")), 400);
  EXPECT_EQ(HttpStatus(ResourceExhausted("")), 503);
  EXPECT_EQ(HttpStatus(Internal("")), 500);
  EXPECT_EQ(HttpStatus(DeadlineExceeded("")), 408);
  EXPECT_TRUE(json(ErrorBody(Internal(""), ""))["error"]["param"].is_null());
}

TEST_F(OpenAiRequestTest, TheSchemaOfAnAnswerKeepsTheOrderOfItsText) {
  const std::string schema =
      R"({"type":"object","properties":{"steps":{"properties":{"z":{"const":1},"b":{"const":{"y":2,"a":3}}}},)"
      R"("answer":{"type":"integer"}},"required":["steps","answer"]})";
  const std::string body =
      R"({"prompt": "a", "response_format": {"json_schema": {"name": "n", "schema": )" + schema + R"(}, "type": "json_schema"}})";
  const Result<std::string> in_order = ResponseSchemaInOrder(body);
  ASSERT_TRUE(in_order.ok()) << in_order.status().message();
  EXPECT_EQ(*in_order, schema);
  BodyError body_error;
  const std::optional<OpenAiRequest> parsed =
      parser_.Parse(Endpoint::kCompletions, json::parse(body), &body_error, {}, nullptr, *in_order);
  ASSERT_TRUE(parsed) << body_error.status.message();
  EXPECT_EQ(parsed->output->source.text, schema);
  BatchErrors::Error line_error;
  const std::optional<BatchLine> line = ParseBatchLine(
      R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": )" + body + "}", 1, parser_, &line_error);
  ASSERT_TRUE(line) << line_error.status.message();
  EXPECT_EQ(line->request.output->source.text, schema);
  EXPECT_EQ(ResponseSchemaInOrder(R"({"prompt": "a"})").value(), "");
}

TEST_F(OpenAiRequestTest, ABatchLineWithoutASeedDrawsByItsId) {
  const auto seed = [&](const std::string& field) {
    BatchErrors::Error error;
    const std::string line =
        R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x")" + field + "}}";
    const std::optional<BatchLine> parsed = ParseBatchLine(line, 1, parser_, &error);
    EXPECT_TRUE(parsed) << error.status.message();
    return parsed->request.request.sampling.seed;
  };
  EXPECT_EQ(seed(R"(, "seed": null)"), seed(""));
  EXPECT_NE(seed(""), 0u);
  EXPECT_EQ(seed(R"(, "seed": 7)"), 7u);
}

}  // namespace
}  // namespace coppice::openai
