// Routes for trainers: vLLM's for token ids and its additions to completions, SGLang's /generate; their fields and answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "openai/answer_stream.h"
#include "openai/prompt_fields.h"
#include "openai/response_body.h"
#include "openai/sglang_request.h"
#include "openai/structured_outputs.h"
#include "openai/tokens_request.h"
#include "tests/support/byte_tokenizer.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RolloutRoutesTest : public ::testing::Test {
 protected:
  OpenAiRequest Tokens(json body) {
    body.emplace("token_ids", json({5, 6, 7}));
    error_ = {};
    std::optional<OpenAiRequest> parsed = ParseTokens(body, parser_, &error_);
    EXPECT_TRUE(parsed) << body << error_.status.message();
    return parsed.value_or(OpenAiRequest());
  }
  std::string RefusedByTokens(json body) {
    body.emplace("token_ids", json({5, 6, 7}));
    error_ = {};
    EXPECT_FALSE(ParseTokens(body, parser_, &error_)) << body;
    return error_.param;
  }
  SglangRequests Sglang(const json& body) {
    error_ = {};
    std::optional<SglangRequests> parsed = ParseSglang(body, parser_, &error_);
    EXPECT_TRUE(parsed) << body << error_.status.message();
    return parsed ? *std::move(parsed) : SglangRequests{.prompts = std::vector<OpenAiRequest>(4)};
  }
  std::string RefusedBySglang(const json& body) {
    error_ = {};
    EXPECT_FALSE(ParseSglang(body, parser_, &error_)) << body;
    return error_.param;
  }
  OpenAiRequest Completion(json body) {
    body.emplace("prompt", json({5, 6, 7}));
    error_ = {};
    std::optional<OpenAiRequest> parsed = parser_.Parse(Endpoint::kCompletions, body, &error_);
    EXPECT_TRUE(parsed) << body << error_.status.message();
    return parsed.value_or(OpenAiRequest());
  }
  std::string RefusedCompletion(json body) {
    body.emplace("prompt", json({5, 6, 7}));
    error_ = {};
    EXPECT_FALSE(parser_.Parse(Endpoint::kCompletions, body, &error_)) << body;
    return error_.param;
  }
  // As a request that the engine has taken.
  OpenAiRequest Begun(OpenAiRequest request) {
    parser_.SetPrompt(*parser_.Encode(request), &request);
    (void)request.TakeRequest();
    return request;
  }
  json AnswerTo(std::vector<OpenAiRequest> requests, const RequestOutput& output) {
    std::vector<Answer> answers;
    for (OpenAiRequest& request : requests)
      answers.push_back(
          {.request = Begun(std::move(request)), .output = output, .usage = {.prompt = 3, .cached = 2, .completion = 4}});
    return json::parse(TextOf(ResponseBody(std::move(answers), facts_, &tokenizer_).get()));
  }
  std::vector<json> StreamOfTo(const OpenAiRequest& parsed, const std::vector<StreamEvent>& events) {
    OpenAiRequest request = parsed;
    parser_.SetPrompt(*parser_.Encode(request), &request);
    const std::unique_ptr<AnswerStream> stream = openai::StreamOf(&request, facts_, 0, &tokenizer_);
    (void)request.TakeRequest();
    std::string out;
    for (const StreamEvent& event : events) {
      if (event.index < 0) {
        EXPECT_EQ(stream->Echo(event), nullptr);
      } else {
        stream->Append(event, &out);
      }
    }
    EXPECT_EQ(stream->End({.prompt = 3, .completion = 4}, {}, &out), nullptr);
    std::vector<json> objects;
    for (size_t begin = 0; begin < out.size();) {
      const size_t end = out.find("\n\n", begin);
      const std::string data = out.substr(begin + 6, end - begin - 6);
      objects.push_back(data == "[DONE]" ? json(data) : json::parse(data));
      begin = end + 2;
    }
    EXPECT_EQ(objects.back(), "[DONE]");
    objects.pop_back();
    return objects;
  }

  const ByteTokenizer tokenizer_{Tokenizer::Info{.eos_ids = {0}}};
  const OpenAiRequestParser parser_{&tokenizer_, 1000, OkStatus(), 256, {.unknown_fields = UnknownFields::kIgnore}};
  const ResponseFacts facts_ = {.id = "header-id", .created = 9, .model = "m", .version_label = [](int64_t version) {
                                  return version == 2 ? std::string("step-20") : std::string();
                                }};
  // Two tokens of version 1, then one of version 2, whose label is known.
  const Sample sample_ = {
      .text = "ab",
      .token_ids = {'a', 'b', 9},
      .logprobs = {-0.5f, -1.0f, -2.0f},
      .top_logprobs = {{{'a', -0.5f}, {'c', -3.0f}}, {{'c', -0.25f}, {'b', -1.0f}}, {{'c', -0.5f}, {'d', -1.5f}}},
      .ranks = {1, 2, 3},
      .versions = {{1, 0, 2}, {2, 2, 3}},
      .finish_reason = FinishReason::kStop};
  BodyError error_;
};

// ------------------------------------------------------------------------------------------------------ /inference/v1/generate

TEST_F(RolloutRoutesTest, TokensHaveVllmsNames) {
  const OpenAiRequest parsed = Tokens(json::parse(R"({
    "request_id": "r1", "model": "m", "stream": false, "cache_salt": "s", "priority": 3, "return_token_ids": true, "timeout": 2.5,
    "group_id": "g", "min_answered": 4, "features": null, "kv_transfer_params": null,
    "sampling_params": {"n": 2, "presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.25, "temperature": 0.5,
      "top_p": 0.75, "top_k": -1, "min_p": 0.125, "seed": 7, "stop": ["x"], "stop_token_ids": [9], "ignore_eos": true, "max_tokens": 8,
      "min_tokens": 2, "logprobs": 100, "prompt_logprobs": 5, "logit_bias": {"5": 1}, "detokenize": false, "output_kind": 2,
      "skip_special_tokens": true, "bad_words": [], "logprobs_mode": "processed_logprobs", "structured_outputs": {"regex": "a+"}}})"));
  const Request& request = parsed.request;
  EXPECT_THAT(parsed.prompt_ids, ElementsAre(5, 6, 7));
  EXPECT_EQ(parsed.client_id, "r1");
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.priority, -3);  // lower numbers come first there
  EXPECT_EQ(request.group.name, "g");
  EXPECT_EQ(request.group.min_answered, 4);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(parsed.max_tokens, 8);
  EXPECT_EQ(request.min_tokens, 2);
  EXPECT_EQ(request.top_logprobs, 100);
  EXPECT_EQ(request.prompt_top_logprobs, 5);
  EXPECT_TRUE(request.prompt_logprobs && request.ranks && parsed.logprobs && request.ignore_eos);
  EXPECT_EQ(request.sampling.logprobs_mode, LogprobsMode::kProcessed);
  EXPECT_EQ(request.sampling.seed, 7u);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_THAT(request.stop_token_ids, ElementsAre(9));
  ASSERT_TRUE(parsed.output);
  EXPECT_EQ(parsed.output->source.kind, GrammarKind::kRegex);
  EXPECT_THAT(parsed.ignored_fields, IsEmpty());
  EXPECT_TRUE(Tokens(json::object()).no_limit);  // up to the end of the context
  EXPECT_FALSE(Tokens(json::object()).request.ranks);
  (void)Tokens(
      json::parse(R"({"sampling_params": {"skip_special_tokens": false, "include_stop_str_in_output": true}})"));  // of text
  EXPECT_EQ(Tokens(json::object()).request.sampling.logprobs_mode, LogprobsMode::kRaw);
  EXPECT_THAT(Tokens(json::parse(R"({"sampling_params": {"mood": 1}, "weather": 2})")).ignored_fields,
              ElementsAre("sampling_params.mood", "weather"));
}

// As vLLM's SamplingParams are written whole.
TEST_F(RolloutRoutesTest, TokensTakeAllOfVllmsParametersAtTheirDefaults) {
  const OpenAiRequest parsed = Tokens(json::parse(R"({"stream": true, "sampling_params": {
    "n": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "temperature": 1.0, "top_p": 1.0, "top_k": 0,
    "min_p": 0.0, "seed": null, "stop": [], "stop_token_ids": [], "ignore_eos": false, "max_tokens": null, "min_tokens": 0, "logprobs": null,
    "prompt_logprobs": null, "flat_logprobs": false, "detokenize": true, "skip_special_tokens": true,
    "spaces_between_special_tokens": true, "include_stop_str_in_output": false, "output_kind": 0, "skip_clone": false,
    "structured_outputs": {"json": null, "regex": "a", "choice": null, "grammar": null, "json_object": null, "disable_fallback": false,
      "disable_any_whitespace": false, "disable_additional_properties": false, "whitespace_pattern": null, "structural_tag": null,
      "_backend": null, "_backend_was_auto": false},
    "logit_bias": null, "allowed_token_ids": null, "extra_args": null, "bad_words": [], "skip_reading_prefix_cache": false,
    "thinking_token_budget": null, "truncate_prompt_tokens": null}})"));
  EXPECT_TRUE(parsed.no_limit && parsed.stream && parsed.output);
  EXPECT_FALSE(parsed.logprobs);
  EXPECT_FALSE(parsed.token_route->final_only);
  EXPECT_THAT(parsed.ignored_fields, IsEmpty());
}

TEST_F(RolloutRoutesTest, TokensAreRefusedByTheBodysNames) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"token_ids": []})", "token_ids"},
      {R"({"token_ids": [[5]]})", "token_ids"},
      {R"({"token_ids": [1.5]})", "token_ids"},
      {R"({"token_ids": "ab"})", "token_ids"},
      {R"({"sampling_params": 5})", "sampling_params"},
      {R"({"sampling_params": {"logprobs": 129}})", "sampling_params.logprobs"},
      {R"({"sampling_params": {"logprobs": -1}})", "sampling_params.logprobs"},
      {R"({"sampling_params": {"n": "x"}})", "sampling_params.n"},
      {R"({"sampling_params": {"prompt_logprobs": 129}})", "sampling_params.prompt_logprobs"},
      {R"({"stream": true, "sampling_params": {"prompt_logprobs": 1}})", "sampling_params.prompt_logprobs"},
      {R"({"sampling_params": {"logprobs_mode": "raw_logits"}})", "sampling_params.logprobs_mode"},
      {R"({"sampling_params": {"output_kind": 3}})", "sampling_params.output_kind"},
      {R"({"sampling_params": {"bad_words": ["x"]}})", "sampling_params.bad_words"},
      {R"({"output_mode": "text", "sampling_params": {"skip_special_tokens": false}})", "sampling_params.skip_special_tokens"},
      {R"({"sampling_params": {"structured_outputs": {"regex": "a", "choice": ["b"]}}})", "sampling_params.structured_outputs"},
      {R"({"features": {"mm_hashes": {}}})", "features"},
      {R"({"output_mode": "audio"})", "output_mode"},
      {R"({"logprobs_format": "compact"})", "logprobs_format"},
      {R"({"priority": -2147483648})", "priority"},
      {R"({"cache_salt": 5})", "cache_salt"}};
  for (const auto& [body, param] : cases) EXPECT_EQ(RefusedByTokens(json::parse(body)), param) << body;
  EXPECT_EQ(RefusedByTokens({{"request_id", std::string(1025, 'r')}}), "request_id") << "each event repeats it";
  EXPECT_FALSE(ParseTokens(json::parse(R"({"sampling_params": {}})"), parser_, &error_));
  EXPECT_EQ(error_.status.message(), "token_ids is null, expected a list of token ids, at least one");
}

TEST_F(RolloutRoutesTest, TokensComeBackWithRanksReasonsAndVersions) {
  const OpenAiRequest request = Tokens(json::parse(
      R"({"request_id": "r1", "sampling_params": {"logprobs": 2, "prompt_logprobs": 1, "stop_token_ids": [9], "stop": ["x", "yz"]}})"));
  RequestOutput output = {
      .prompt = {.logprobs = {std::nullopt, -0.5f, -3.0f}, .top_logprobs = {{}, {{6, -0.5f}}, {{8, -0.125f}}}, .ranks = {0, 1, 4}},
      .samples = {sample_}};
  const json body = AnswerTo({request}, output);
  EXPECT_EQ(body["request_id"], "r1");
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(body["prompt_logprobs"], json::parse(R"([null, {"6": {"logprob": -0.5, "rank": 1, "decoded_token": "\u0006"}},
    {"7": {"logprob": -3.0, "rank": 4, "decoded_token": "\u0007"}, "8": {"logprob": -0.125, "rank": 1, "decoded_token": "\b"}}])"));
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["token_ids"], json({'a', 'b', 9}));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], 9);
  EXPECT_EQ(choice["weight_versions"],
            json::parse(R"([{"version": "1", "start": 0, "end": 2}, {"version": "step-20", "start": 2, "end": 3}])"));
  EXPECT_EQ(choice["logprobs"]["content"][1], json::parse(R"({"token": "token_id:98", "token_id": 98, "logprob": -1.0, "rank": 2,
    "top_logprobs": [{"token": "token_id:98", "token_id": 98, "logprob": -1.0, "rank": 2},
                     {"token": "token_id:99", "token_id": 99, "logprob": -0.25, "rank": 1}]})"));
  EXPECT_EQ(choice["logprobs"]["content"][2]["top_logprobs"].size(), 3u);  // it is none of the two most probable
  EXPECT_FALSE(choice.contains("text"));
  EXPECT_FALSE(body.contains("prompt_token_ids"));

  output.samples[0].stop = 1;
  output.samples.push_back({.index = 1, .token_ids = {'a'}, .logprobs = {-1}, .finish_reason = FinishReason::kCancelled});
  const json other = AnswerTo({Tokens(json::parse(R"({"return_token_ids": true, "output_mode": "text",
    "sampling_params": {"n": 2, "stop": ["x", "yz"]}})"))},
                              output);
  EXPECT_EQ(other["request_id"], "header-id");
  EXPECT_EQ(other["prompt_token_ids"], json({5, 6, 7}));
  EXPECT_EQ(other["prompt_logprobs"], nullptr);
  EXPECT_EQ(other["choices"][0]["stop_reason"], "yz");
  EXPECT_EQ(other["choices"][0]["text"], "ab");
  EXPECT_EQ(other["choices"][0]["logprobs"], nullptr);
  EXPECT_EQ(other["choices"][1]["finish_reason"], "abort");
  EXPECT_EQ(other["choices"][1]["stop_reason"], nullptr);
  EXPECT_EQ(other["choices"][1]["token_ids"], json({'a'}));
}

const std::vector<StreamEvent>& Events() {
  static const std::vector<StreamEvent> events = {
      {.index = 0, .token_ids = {'a'}, .logprobs = {-0.5f}, .ranks = {1}, .text = "a", .cached_tokens = 2, .weight_version = 1},
      {.index = 1, .token_ids = {'c'}, .logprobs = {-1.5f}, .ranks = {2}, .text = "c", .cached_tokens = 2, .weight_version = 1},
      {.index = 0,
       .token_ids = {'b'},
       .logprobs = {-1.0f},
       .ranks = {3},
       .text = "b",
       .finish_reason = FinishReason::kLength,
       .weight_version = 2},
      {.index = 1, .finish_reason = FinishReason::kCancelled, .weight_version = 2}};
  return events;
}

TEST_F(RolloutRoutesTest, TokensStream) {
  const std::vector<json> objects = StreamOfTo(Tokens(json::parse(R"({"stream": true, "return_token_ids": true,
    "stream_options": {"include_usage": true}, "sampling_params": {"n": 2, "logprobs": 0}})")),
                                               Events());
  ASSERT_EQ(objects.size(), 5u);
  EXPECT_EQ(objects[0]["prompt_token_ids"], json({5, 6, 7}));
  EXPECT_FALSE(objects[1].contains("prompt_token_ids"));
  EXPECT_EQ(objects[0]["choices"][0]["token_ids"], json({'a'}));
  EXPECT_EQ(objects[0]["choices"][0]["finish_reason"], nullptr);
  EXPECT_FALSE(objects[0]["choices"][0].contains("weight_versions"));
  EXPECT_EQ(objects[2]["choices"][0]["token_ids"], json({'b'}));
  EXPECT_EQ(objects[2]["choices"][0]["logprobs"]["content"][0]["rank"], 3);
  EXPECT_EQ(objects[2]["choices"][0]["logprobs"]["content"].size(), 1u);
  EXPECT_EQ(objects[2]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(objects[2]["choices"][0]["weight_versions"].size(), 2u);
  EXPECT_EQ(objects[3]["choices"][0]["finish_reason"], "abort");
  EXPECT_EQ(objects[3]["choices"][0]["token_ids"], json::array());
  EXPECT_EQ(objects[4]["choices"], json::array());
  EXPECT_EQ(objects[4]["usage"]["completion_tokens"], 4);

  const std::vector<json> ends =
      StreamOfTo(Tokens(json::parse(R"({"stream": true, "sampling_params": {"n": 2, "output_kind": "FINAL_ONLY"}})")), Events());
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0]["choices"][0]["token_ids"], json({'a', 'b'}));
  EXPECT_EQ(ends[1]["choices"][0]["token_ids"], json({'c'}));
}

// ------------------------------------------------------------------------------------- vLLM's additions to completions and chats

TEST_F(RolloutRoutesTest, CompletionsReportPromptsAndTheirLogprobs) {
  const OpenAiRequest request =
      Completion(json::parse(R"({"n": 2, "prompt_logprobs": 1, "return_token_ids": true, "return_tokens_as_token_ids": true,
        "logprobs": 2})"));
  EXPECT_TRUE(request.request.prompt_logprobs && request.request.ranks);
  EXPECT_FALSE(request.request.echo);
  RequestOutput output = {
      .prompt = {.logprobs = {std::nullopt, -0.5f, -3.0f}, .top_logprobs = {{}, {{6, -0.5f}}, {{8, -0.125f}}}, .ranks = {0, 1, 4}},
      .samples = {sample_, {.index = 1, .finish_reason = FinishReason::kCancelled}}};
  const json body = AnswerTo({request, request}, output);
  ASSERT_EQ(body["choices"].size(), 4u);  // prompt by prompt
  for (const json& choice : body["choices"]) {
    EXPECT_EQ(choice["prompt_token_ids"], json({5, 6, 7}));
    EXPECT_EQ(choice["prompt_logprobs"].size(), 3u);
    EXPECT_EQ(choice["prompt_logprobs"][0], nullptr);
    EXPECT_EQ(choice["prompt_logprobs"][2]["8"]["rank"], 1);
  }
  EXPECT_EQ(body["choices"][0]["token_ids"], json({'a', 'b', 9}));
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"], json({"token_id:97", "token_id:98", "token_id:9"}));
  EXPECT_EQ(body["choices"][0]["logprobs"]["top_logprobs"][1], json({{"token_id:99", -0.25}, {"token_id:98", -1.0}}));
  EXPECT_EQ(body["choices"][0]["logprobs"]["top_logprobs"][2],
            json({{"token_id:99", -0.5}, {"token_id:100", -1.5}, {"token_id:9", -2.0}}));  // the token itself, as in vLLM
  const json chosen = AnswerTo({Completion(json::parse(R"({"logprobs": 0, "return_tokens_as_token_ids": true})"))},
                               {.samples = {{.token_ids = {'a'}, .logprobs = {-1}, .finish_reason = FinishReason::kStop}}});
  EXPECT_EQ(chosen["choices"][0]["logprobs"]["top_logprobs"], json::parse(R"([{"token_id:97": -1.0}])"));
  EXPECT_EQ(body["choices"][1]["finish_reason"], "abort");
  EXPECT_EQ(body["choices"][3]["index"], 3);

  EXPECT_EQ(RefusedCompletion({{"prompt_logprobs", 1}, {"stream", true}}), "prompt_logprobs");
  EXPECT_EQ(RefusedCompletion({{"prompt_logprobs", 1}, {"echo", true}, {"logprobs", 1}}), "prompt_logprobs");
  EXPECT_EQ(RefusedCompletion({{"prompt_logprobs", -1}}), "prompt_logprobs");
  EXPECT_EQ(RefusedCompletion({{"logprobs_mode", "x"}}), "logprobs_mode");
  EXPECT_THAT(error_.status.message(), HasSubstr("neither raw_logprobs (raw) nor processed_logprobs (processed)"));
  EXPECT_EQ(Completion({{"logprobs_mode", "processed"}}).request.sampling.logprobs_mode, LogprobsMode::kProcessed);
}

TEST_F(RolloutRoutesTest, StructuredOutputs) {
  const auto form = [&](const char* text) {
    const OpenAiRequest parsed = Completion({{"structured_outputs", json::parse(text)}});
    return parsed.output ? std::pair(parsed.output->source.kind, parsed.output->source.text)
                         : std::pair(GrammarKind::kJson, std::string());
  };
  EXPECT_EQ(form(R"({"regex": "a|b"})"), std::pair(GrammarKind::kRegex, std::string("a|b")));
  EXPECT_EQ(form(R"({"grammar": "root ::= \"a\""})"), std::pair(GrammarKind::kEbnf, std::string("root ::= \"a\"")));
  EXPECT_EQ(form(R"({"json_object": true, "regex": null})"), std::pair(GrammarKind::kJsonObject, std::string()));
  EXPECT_EQ(form(R"({"json": {"type": "integer"}, "disable_fallback": true})"),
            std::pair(GrammarKind::kJsonSchema, std::string(R"({"type":"integer"})")));
  EXPECT_EQ(form(R"({"json": "{\"type\": \"integer\"}"})"),
            std::pair(GrammarKind::kJsonSchema, std::string(R"({"type": "integer"})")));
  EXPECT_EQ(form(R"({"choice": ["yes", "say \"no\"\n"]})").second, "root ::= \"yes\" | \"say \\\"no\\\"\\u000a\"");
  EXPECT_FALSE(Completion({{"structured_outputs", json::object()}}).output);
  for (const char* text : {R"(5)", R"({"structural_tag": "{}"})", R"({"choice": []})", R"({"choice": ["a", ""]})",
                           R"({"regex": "a", "json_object": true})"})
    EXPECT_THAT(RefusedCompletion({{"structured_outputs", json::parse(text)}}), ::testing::StartsWith("structured_outputs"))
        << text;
  EXPECT_EQ(RefusedCompletion({{"structured_outputs", {{"regex", "a"}}}, {"regex", "b"}}), "regex");
}

// ----------------------------------------------------------------------------------------------------------------- /generate

TEST_F(RolloutRoutesTest, SglangsNames) {
  const SglangRequests parsed =
      Sglang(json::parse(R"({"input_ids": [5, 6, 7], "rid": "r", "return_logprob": true, "logprob_start_len": 1,
    "top_logprobs_num": 3, "priority": 2, "extra_key": "salt", "image_data": null, "log_metrics": true,
    "sampling_params": {"max_new_tokens": 9, "min_new_tokens": 1, "temperature": 0.5, "top_p": 0.5, "top_k": -1, "min_p": 0.25, "stop": "x",
      "stop_token_ids": [9], "ignore_eos": true, "n": 2, "sampling_seed": 3, "ebnf": "root ::= \"a\"", "skip_special_tokens": true,
      "frequency_penalty": 0.5, "presence_penalty": 0.25, "repetition_penalty": 1.5, "no_stop_trim": false}})"));
  ASSERT_EQ(parsed.prompts.size(), 1u);
  EXPECT_TRUE(parsed.seeded);
  const OpenAiRequest& one = parsed.prompts[0];
  const Request& request = one.request;
  EXPECT_THAT(one.prompt_ids, ElementsAre(5, 6, 7));
  EXPECT_EQ(one.client_id, "r");
  EXPECT_EQ(one.max_tokens, 9);
  EXPECT_EQ(request.min_tokens, 1);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.priority, 2);
  EXPECT_EQ(request.cache_salt, "salt");
  EXPECT_EQ(request.sampling.seed, 3u);
  EXPECT_EQ(request.sampling.min_p, 0.25f);
  EXPECT_EQ(request.top_logprobs, 3);
  EXPECT_TRUE(request.prompt_logprobs);
  EXPECT_EQ(request.prompt_logprobs_begin, 1);
  EXPECT_EQ(one.output->source.kind, GrammarKind::kEbnf);
  EXPECT_TRUE(one.sglang->is_list && one.sglang->with_top && one.sglang->with_input_logprobs);
  EXPECT_THAT(one.ignored_fields, IsEmpty());

  const SglangRequests plain = Sglang({{"text", "ab"}});
  EXPECT_FALSE(plain.seeded);
  EXPECT_EQ(plain.prompts[0].max_tokens, 128);
  EXPECT_FALSE(plain.prompts[0].logprobs || plain.prompts[0].request.prompt_logprobs || plain.prompts[0].sglang->is_list);
  EXPECT_EQ(
      Sglang({{"text", "ab"}, {"sampling_params", {{"json_schema", R"({"type": "integer"})"}}}}).prompts[0].output->source.text,
      R"({"type": "integer"})");
  EXPECT_FALSE(Sglang({{"text", "ab"}, {"return_logprob", true}}).prompts[0].request.prompt_logprobs);
}

TEST_F(RolloutRoutesTest, SglangsListsHaveAValueForEachPrompt) {
  const SglangRequests parsed =
      Sglang(json::parse(R"({"input_ids": [[1, 2], [3]], "rid": ["a", "b"], "return_logprob": [true, false],
    "sampling_params": [{"max_new_tokens": 3}, {"max_new_tokens": 5, "n": 2}]})"));
  ASSERT_EQ(parsed.prompts.size(), 2u);
  EXPECT_EQ(parsed.prompts[0].max_tokens, 3);
  EXPECT_EQ(parsed.prompts[1].max_tokens, 5);
  EXPECT_EQ(parsed.prompts[1].request.n, 2);
  EXPECT_EQ(parsed.prompts[1].client_id, "b");
  EXPECT_TRUE(parsed.prompts[0].logprobs);
  EXPECT_FALSE(parsed.prompts[1].logprobs);
  EXPECT_EQ(Sglang(json::parse(R"({"text": ["a", "b"], "sampling_params": {"temperature": 0}})")).prompts.size(), 2u);
}

TEST_F(RolloutRoutesTest, SglangIsRefusedByTheBodysNames) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "text"},
      {R"({"text": "a", "input_ids": [1]})", "input_ids"},
      {R"({"text": [1, "a"]})", "text"},
      {R"({"text": []})", "text"},
      {R"({"input_ids": []})", "input_ids"},
      {R"({"input_ids": [[1], []]})", "input_ids"},
      {R"({"input_ids": [1, -2]})", "input_ids"},
      {R"({"text": "a", "sampling_params": [{}, {}]})", "sampling_params"},
      {R"({"text": "a", "sampling_params": {"max_new_tokens": "x"}})", "sampling_params.max_new_tokens"},
      {R"({"text": "a", "sampling_params": {"stop_regex": "x"}})", "sampling_params.stop_regex"},
      {R"({"text": "a", "return_logprob": true, "top_logprobs_num": 129})", "top_logprobs_num"},
      {R"({"text": "a", "logprob_start_len": -2})", "logprob_start_len"},
      {R"({"text": "a", "return_logprob": "yes"})", "return_logprob"},
      {R"({"text": "a", "image_data": "x"})", "image_data"},
      {R"({"text": "a", "extra_key": 5})", "extra_key"},
      {R"({"text": ["a", "b"], "sampling_params": [{"sampling_seed": 1}, {}]})", "sampling_params.sampling_seed"},
      {R"({"text": ["a", "b"], "sampling_params": [{"regex": "x"}, {}]})", "sampling_params"}};
  for (const auto& [body, param] : cases) EXPECT_EQ(RefusedBySglang(json::parse(body)), param) << body;
  EXPECT_EQ(RefusedBySglang({{"text", {"a", "b"}}, {"rid", {"r", std::string(1025, 'r')}}}), "rid");
  const json stops = {{"stop", json(16, json(std::string(1000, 's')))}};
  EXPECT_EQ(RefusedBySglang({{"text", json(kMaxPrompts, json("a"))}, {"sampling_params", stops}}), "sampling_params")
      << "a copy for each prompt";
}

TEST_F(RolloutRoutesTest, SglangsLogprobsBeginWithinThePrompt) {
  const auto check = [&](const json& start, bool logprobs) {
    OpenAiRequest prompt = Sglang({{"text", "abc"}, {"return_logprob", logprobs}, {"logprob_start_len", start}}).prompts[0];
    parser_.SetPrompt(*parser_.Encode(prompt), &prompt);
    return CheckLogprobStart(prompt);
  };
  for (const int32_t start : {-1, 0, 2, 3}) EXPECT_TRUE(check(start, true).status.ok()) << start;
  EXPECT_TRUE(check(100, false).status.ok());  // there are none
  const BodyError beyond = check(4, true);
  EXPECT_EQ(beyond.param, "logprob_start_len");
  EXPECT_THAT(beyond.status.message(), HasSubstr("logprob_start_len is 4 and the prompt has 3 tokens"));
}

TEST_F(RolloutRoutesTest, FormsOfOutputAreRefusedByTheBodysNamesWhileTheyAreCompiled) {
  const Status status = InvalidArgument("it cannot be used");
  const auto param = [&](const char* params) {
    return Sglang({{"text", "a"}, {"sampling_params", json::parse(params)}}).prompts[0].ErrorUnderWay(status).param;
  };
  EXPECT_EQ(param(R"({"ebnf": "root ::= x"})"), "sampling_params.ebnf");
  EXPECT_EQ(param(R"({"regex": "("})"), "sampling_params.regex");
  EXPECT_EQ(param(R"({"json_schema": "{}"})"), "sampling_params.json_schema");
  const OpenAiRequest tokens =
      Tokens(json::parse(R"({"token_ids": [5], "sampling_params": {"structured_outputs": {"regex": "("}}})"));
  EXPECT_EQ(tokens.ErrorUnderWay(status).param, "sampling_params.structured_outputs");
}

TEST_F(RolloutRoutesTest, SglangsAnswers) {
  const json ask = {{"input_ids", {5, 6, 7}},
                    {"rid", "r"},
                    {"return_logprob", true},
                    {"logprob_start_len", 1},
                    {"top_logprobs_num", 2},
                    {"return_text_in_logprobs", true},
                    {"sampling_params", {{"max_new_tokens", 3}, {"stop", {"x", "yz"}}}}};
  RequestOutput output = {.prompt = {.logprobs = {std::nullopt, -0.5f, -3.0f}, .top_logprobs = {{}, {{6, -0.5f}}, {{8, -0.125f}}}},
                          .samples = {sample_}};
  const json body = AnswerTo(Sglang(ask).prompts, output);
  EXPECT_EQ(body["text"], "ab");
  EXPECT_EQ(body["output_ids"], json({'a', 'b', 9}));
  const json& meta = body["meta_info"];
  EXPECT_EQ(meta["id"], "r");
  EXPECT_EQ(meta["finish_reason"], json::parse(R"({"type": "stop", "matched": 9})"));
  EXPECT_EQ(meta["prompt_tokens"], 3);
  EXPECT_EQ(meta["completion_tokens"], 3);
  EXPECT_EQ(meta["cached_tokens"], 2);
  EXPECT_EQ(meta["weight_version"], "step-20");
  EXPECT_EQ(meta["output_token_logprobs"], json::parse(R"([[-0.5, 97, "a"], [-1.0, 98, "b"], [-2.0, 9, "\t"]])"));
  EXPECT_EQ(meta["output_top_logprobs"][1], json::parse(R"([[-0.25, 99, "c"], [-1.0, 98, "b"]])"));
  EXPECT_EQ(meta["input_token_logprobs"], json::parse(R"([[-0.5, 6, "\u0006"], [-3.0, 7, "\u0007"]])"));
  EXPECT_EQ(meta["input_top_logprobs"], json::parse(R"([[[-0.5, 6, "\u0006"]], [[-0.125, 8, "\b"]]])"));

  output.samples[0].stop = 1;
  output.samples.push_back({.index = 1, .text = "c", .token_ids = {'c'}, .logprobs = {-1}, .finish_reason = FinishReason::kLength});
  output.samples.push_back({.index = 2, .finish_reason = FinishReason::kCancelled});
  const json list = AnswerTo(
      Sglang({{"text", {"a", "b"}}, {"sampling_params", {{"n", 3}, {"max_new_tokens", 3}, {"stop", {"x", "yz"}}}}}).prompts,
      output);
  ASSERT_EQ(list.size(), 6u);  // prompt by prompt
  EXPECT_EQ(list[0]["meta_info"]["finish_reason"], json::parse(R"({"type": "stop", "matched": "yz"})"));
  EXPECT_EQ(list[1]["meta_info"]["finish_reason"], json::parse(R"({"type": "length", "length": 3})"));
  EXPECT_EQ(list[2]["meta_info"]["finish_reason"]["type"], "abort");
  EXPECT_EQ(list[4]["index"], 4);
  EXPECT_EQ(list[4]["text"], "c");
  EXPECT_FALSE(list[4]["meta_info"].contains("output_token_logprobs"));
}

TEST_F(RolloutRoutesTest, SglangsTextsKeepWhatIsAskedFor) {
  const auto text = [&](const char* params, const Sample& sample) {
    const json ask = {{"text", "a"}, {"sampling_params", json::parse(params)}};
    return AnswerTo(Sglang(ask).prompts, {.samples = {sample}})["text"].get<std::string>();
  };
  const Sample by_token = {
      .text = "ab", .token_ids = {'a', 'b', '!'}, .logprobs = {-1, -1, -1}, .finish_reason = FinishReason::kStop};
  EXPECT_EQ(text(R"({"spaces_between_special_tokens": false})", by_token), "ab");
  EXPECT_EQ(text(R"({"no_stop_trim": true, "skip_special_tokens": false, "spaces_between_special_tokens": false})", by_token),
            "ab!");
  EXPECT_EQ(text(R"({"skip_special_tokens": false})", by_token), "ab");
  Sample by_text = by_token;
  by_text.stop = 0;
  by_text.text = "a";
  EXPECT_EQ(text(R"({"stop": "b!", "no_stop_trim": true})", by_text), "ab!");
  EXPECT_EQ(text(R"({"stop": "b!", "skip_special_tokens": false})", by_text), "a");
  Sample by_second = by_text;  // the first stop comes before min_new_tokens
  by_second.token_ids = {'a', ',', 'b', ','};
  by_second.logprobs = {-1, -1, -1, -1};
  by_second.text = "a,b";
  EXPECT_EQ(text(R"({"stop": ",", "min_new_tokens": 3, "skip_special_tokens": false})", by_second), "a,b");
  // A tokenizer that puts a space before a text, and takes it away again: not before an output, which goes on from the prompt.
  const ByteTokenizer spacing(Tokenizer::Info{.strip = " ", .strip_start = 1});
  std::vector<Answer> answers(1);
  answers[0].request = Begun(Sglang({{"text", "a"}, {"sampling_params", {{"skip_special_tokens", false}}}}).prompts[0]);
  answers[0].output.samples = {{.text = " b", .token_ids = {' ', 'b'}, .logprobs = {-1, -1}}};
  EXPECT_EQ(json::parse(TextOf(ResponseBody(std::move(answers), facts_, &spacing).get()))["text"], " b");
}

TEST_F(RolloutRoutesTest, SglangsStreamsReportAllThatThereIsSoFar) {
  const std::vector<json> objects = StreamOfTo(
      Sglang({{"text", "abc"}, {"stream", true}, {"return_logprob", true}, {"sampling_params", {{"n", 2}}}}).prompts[0], Events());
  ASSERT_EQ(objects.size(), 4u);
  EXPECT_EQ(objects[2]["index"], 0);
  EXPECT_EQ(objects[2]["text"], "ab");
  EXPECT_EQ(objects[2]["output_ids"], json({'a', 'b'}));
  EXPECT_EQ(objects[2]["meta_info"]["output_token_logprobs"].size(), 2u);
  EXPECT_EQ(objects[2]["meta_info"]["cached_tokens"], 2);
  EXPECT_EQ(objects[0]["meta_info"]["finish_reason"], nullptr);
  EXPECT_EQ(objects[3]["text"], "c");
  EXPECT_EQ(objects[3]["meta_info"]["finish_reason"]["type"], "abort");
}

}  // namespace
}  // namespace coppice::openai
