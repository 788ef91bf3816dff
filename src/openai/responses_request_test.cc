// Bodies of /v1/responses: what becomes of their items, fields and names, and what is refused.
#include "openai/responses_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "openai/answer_size.h"
#include "openai/batch_input.h"
#include "openai/ordered_parts.h"
#include "openai/request.h"
#include "tests/support/byte_tokenizer.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::ByteTokenizer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int32_t kContext = 1000;
// It shows everything that it is given.
constexpr const char* kTemplate =
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant', 'tool'] %}{{ raise_exception('role') }}{% endif %}"
    "{{ m.role }}:{{ m.content }}{{ m.mood }}{% if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}"
    "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %};{% endfor %}"
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ reasoning_effort }}{{ verbosity }}"
    "{% if add_generation_prompt %}?{% endif %}{# <tool_call> #}";

class ResponsesRequest : public ::testing::Test {
 protected:
  std::optional<OpenAiRequest> Parse(const std::string& text, BodyError* error, UnknownFields rule) {
    const OpenAiRequestParser parser(&tokenizer_, kContext, OkStatus(), 0, {.unknown_fields = rule});
    const json body = json::parse(text);
    const std::optional<OrderedParts> ordered = ReadOrderedParts(Endpoint::kResponses, body, text, error);
    if (!ordered) return std::nullopt;
    return parser.Parse(Endpoint::kResponses, body, error, {}, ordered->tools_or_null(), ordered->schema);
  }
  OpenAiRequest Parsed(const std::string& body, UnknownFields rule = UnknownFields::kRefuse) {
    BodyError error;
    std::optional<OpenAiRequest> parsed = Parse(body, &error, rule);
    EXPECT_TRUE(parsed) << body << ": " << error.param << ": " << error.status.message();
    return parsed.value_or(OpenAiRequest());
  }
  // The prompt that the template makes of a list of items.
  std::string Text(const std::string& items) { return *Parsed(R"({"input": )" + items + "}").text; }
  BodyError Refused(const std::string& body, UnknownFields rule = UnknownFields::kIgnore) {
    BodyError error;
    EXPECT_FALSE(Parse(body, &error, rule)) << body;
    EXPECT_THAT(error.param, Not(HasSubstr("messages"))) << body;
    EXPECT_THAT(error.status.message(), Not(HasSubstr("messages"))) << body;
    return error;
  }
  json Echo(const OpenAiRequest& request) { return json::parse("{" + request.responses->echo + "}"); }

  ByteTokenizer tokenizer_{kTemplate};
};

TEST_F(ResponsesRequest, InputIsATextOrItems) {
  EXPECT_EQ(*Parsed(R"({"input": "a"})").text, "user:a;?");
  EXPECT_EQ(*Parsed(R"({"input": "a", "instructions": "Brief."})").text, "system:Brief.;user:a;?");
  EXPECT_EQ(*Parsed(R"({"input": "a", "instructions": ""})").text, "user:a;?");
  EXPECT_EQ(Text(R"([{"role": "user", "content": "a"}, {"type": "message", "role": "developer", "content": "b"}])"),
            "user:a;system:b;?");
  EXPECT_EQ(Text(R"([{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}])"),
            "user:ab;?");
}

TEST_F(ResponsesRequest, OutputItemsComeBackAsTheTurnThatTheyWere) {
  EXPECT_EQ(Text(R"([{"role": "user", "content": "a"},
      {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": null},
      {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "phase": "final_answer",
       "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}]},
      {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{\"x\": 1}", "status": "completed"},
      {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "!"}]},
      {"type": "function_call_output", "call_id": "c1", "output": "one"},
      {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
      {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"}])"),
            R"(user:a;assistant:b!<hm>[c1 f {"x": 1}][c2 g {}];tool:one(c1);tool:two(c2);assistant:[c3 f {}];?)");
}

TEST_F(ResponsesRequest, ReasoningBelongsToWhatFollowsIt) {
  EXPECT_EQ(Text(R"([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
                     {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                     {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}], "summary": []},
                     {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}])"),
            "assistant:<s>[c f {}];assistant:b<r>;assistant:c;?");
  EXPECT_EQ(
      Text(R"([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, {"role": "user", "content": "a"}])"),
      "assistant:<s>;user:a;?");
  EXPECT_EQ(Text(R"([{"role": "user", "content": "a"}, {"type": "reasoning", "summary": [], "encrypted_content": "x"}])"),
            "user:a;?");
}

TEST_F(ResponsesRequest, FieldsAreTheChatsUnderOtherNames) {
  const OpenAiRequest parsed =
      Parsed(R"({"input": "a", "max_output_tokens": 7, "reasoning": {"effort": "low"}, "text": {"verbosity": "high"},
      "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 3, "temperature": 0.7, "store": false,
      "truncation": "disabled", "background": false, "n": 1, "seed": 4, "top_k": 5, "metadata": {"a": "b"}, "previous_response_id": null,
      "stream": true, "stream_options": {"include_obfuscation": false}})");
  EXPECT_EQ(*parsed.text, "user:a;lowhigh?");
  EXPECT_EQ(parsed.max_tokens, 7);
  EXPECT_TRUE(parsed.logprobs);
  EXPECT_EQ(parsed.request.top_logprobs, 3);
  EXPECT_EQ(parsed.request.sampling.seed, 4u);
  EXPECT_EQ(parsed.request.sampling.top_k, 5);
  EXPECT_TRUE(parsed.stream);
  EXPECT_EQ(parsed.endpoint, Endpoint::kResponses);
  const json echo = Echo(parsed);
  EXPECT_EQ(echo["temperature"], 0.7);
  EXPECT_EQ(Echo(Parsed(R"({"input": "a", "temperature": 1e300})"))["temperature"], nullptr);  // which the engine refuses
  EXPECT_EQ(echo["max_output_tokens"], 7);
  EXPECT_EQ(echo["metadata"], json({{"a", "b"}}));
  EXPECT_EQ(echo["reasoning"]["effort"], "low");
  EXPECT_EQ(echo["text"], json::parse(R"({"format": {"type": "text"}, "verbosity": "high"})"));
  EXPECT_EQ(echo["store"], false);
}

TEST_F(ResponsesRequest, ToolsKeepTheClientsOrder) {
  const std::string tools = R"([{"type": "function", "name": "f", "description": "d", "strict": true, "parameters":
      {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "integer"}}, "required": ["z", "a"], "additionalProperties": false}}])";
  const OpenAiRequest parsed = Parsed(R"({"input": "a", "tools": )" + tools +
                                      R"(, "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": false})");
  EXPECT_THAT(*parsed.text,
              HasSubstr(R"({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", )"
                        R"("properties": {"z": {"type": "integer"}, "a")"));
  ASSERT_TRUE(parsed.tools && parsed.output);
  EXPECT_FALSE(parsed.tools->parallel);
  EXPECT_EQ(parsed.output->field, "tool_choice");
  const ordered_json echo = ordered_json::parse("{" + parsed.responses->echo + "}");
  EXPECT_EQ(echo["tools"].dump(), ordered_json::parse(tools).dump());
  EXPECT_EQ(Echo(parsed)["tool_choice"], json({{"type", "function"}, {"name", "f"}}));
}

TEST_F(ResponsesRequest, MembersOfAnAnswerComeInTheOrderOfItsSchema) {
  const std::string schema =
      R"({"type":"object","properties":{"why":{"type":"string"},"answer":{"type":"string"}},"required":["why","answer"]})";
  const OpenAiRequest parsed = Parsed(
      R"({"input": "a", "text": {"format": {"type": "json_schema", "name": "n", "strict": true, "schema": )" + schema + "}}}");
  ASSERT_TRUE(parsed.output);
  EXPECT_EQ(parsed.output->source.text, schema);
  EXPECT_EQ(parsed.output->field, "text.format");
  EXPECT_THAT(parsed.responses->echo, HasSubstr(R"("format":{"type":"json_schema","name":"n","strict":true,"schema":)" + schema));
  EXPECT_EQ(Parsed(R"({"input": "a", "text": {"format": {"type": "json_object"}}})").output->source.kind, GrammarKind::kJsonObject);
  EXPECT_FALSE(Parsed(R"({"input": "a", "text": {"format": {"type": "text"}}})").output);
}

TEST_F(ResponsesRequest, WhatNeedsAServerThatKeepsResponsesIsRefused) {
  const struct {
    const char* fields;
    const char* param;
    const char* instead;
  } cases[] = {
      {R"("previous_response_id": "resp_1")", "previous_response_id",
       R"(is "resp_1", expected none; no responses are kept here: send the earlier)"},
      {R"("store": true)", "store", "store is true, expected false or none; no responses are kept here"},
      {R"("background": true)", "background", "wait, or stream"},
      {R"("conversation": "c")", "conversation", "send all of its items in input"},
      {R"("prompt": {"id": "p"})", "prompt", "instructions and input"},
      {R"("truncation": "auto")", "truncation", R"(is "auto", expected "disabled" or none)"},
      {R"("n": 2)", "n", "/v1/chat/completions"},
      {R"("max_tokens": 2)", "max_tokens", "use max_output_tokens"},
      {R"("response_format": {"type": "text"})", "response_format", "use text.format"},
      {R"("tools": [{"type": "web_search"}])", "tools[0].type", R"(type is "web_search", expected "function")"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}])", "tools[0].function", "beside type"},
      {R"("tool_choice": {"type": "function", "function": {"name": "f"}})", "tool_choice", R"({"type": "function", "name": ...})"},
      {R"("include": ["all"])", "include", "message.output_text.logprobs"},
      {R"("top_logprobs": 2)", "top_logprobs", "where include has no"},
      {R"("text": {"format": {"type": "json_schema", "json_schema": {"schema": {}}}})", "text.format", "with name and schema"},
      {R"("text": 5)", "text", "an object"},
      {R"("metadata": 5)", "metadata", "an object"},
  };
  for (const auto& [fields, param, instead] : cases) {
    const BodyError error = Refused(R"({"input": "a", )" + std::string(fields) + "}");
    EXPECT_EQ(error.param, param);
    EXPECT_THAT(error.status.message(), HasSubstr(instead));
  }
}

TEST_F(ResponsesRequest, ItemsAreRefusedByTheirPlace) {
  const struct {
    const char* items;
    const char* param;
    const char* expected;
  } cases[] = {
      {"null", "input", "input is null, expected a string or a list of items"},
      {"[]", "input", "input is []"},
      {R"([{"role": "user", "content": "a"}, 5])", "input[1]", "input[1] is 5"},
      {R"([{"type": "computer_call"}])", "input[0].type", R"(input[0]: type is "computer_call", expected message, function_call,)"},
      {R"([{"type": "item_reference", "id": "msg_1"}])", "input[0].type", "none are kept here"},
      {R"([{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]}])",
       "input[0].content[1]", "images, files and audio are not read"},
      {R"([{"role": "user", "content": 5}])", "input[0].content", "content is 5"},
      {R"([{"role": "tool", "content": "a"}])", "input[0].role", "function_call_output"},
      {R"([{"role": "assistant", "tool_calls": []}])", "input[0].tool_calls", "items of type function_call"},
      {R"([{"type": "function_call", "name": "f", "arguments": "{}"}])", "input[0].call_id", "the id of the call"},
      {R"([{"type": "function_call_output", "output": "x"}])", "input[0].call_id", "the call_id of the function_call"},
      {R"([{"type": "function_call_output", "call_id": "c"}])", "input[0].output", "output is null"},
      {R"([{"type": "reasoning", "summary": 5}])", "input[0].summary", "summary is 5"},
      {R"([{"role": "bird", "content": "a"}])", "input", "bird"},
  };
  for (const auto& [items, param, expected] : cases) {
    const BodyError error = Refused(R"({"input": )" + std::string(items) + "}");
    EXPECT_EQ(error.param, param);
    EXPECT_THAT(error.status.message(), HasSubstr(expected));
  }
}

TEST_F(ResponsesRequest, WhatIsSaidOfTheChatHasTheNamesOfTheBody) {
  EXPECT_EQ(Refused(R"({"input": "a", "max_output_tokens": "x"})").param, "max_output_tokens");
  EXPECT_THAT(Refused(R"({"input": "a", "max_output_tokens": "x"})").status.message(), HasSubstr("max_output_tokens is \"x\""));
  EXPECT_THAT(Refused(R"({"input": "a", "guided_json": {"type": "object"}})").status.message(), HasSubstr("use text.format"));
  const BodyError both = Refused(R"({"input": "a", "regex": "a", "text": {"format": {"type": "json_object"}}})");
  EXPECT_THAT(both.status.message(), HasSubstr("text.format and regex both say"));
  EXPECT_EQ(Refused(R"({"input": "a", "tools": [{"type": "function", "name": ""}]})").param, "tools[0].name");
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  const BodyError nested = Refused(
      R"({"input": [{"role": "user", "content": "a"}, {"type": "function_call", "call_id": "c0", "name": "f", "arguments": "{}"},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\": )" +
      deep + R"(}"}]})");
  EXPECT_EQ(nested.param, "input[2].arguments");
  EXPECT_THAT(nested.status.message(), HasSubstr("input[2]: "));
  // A value is no name.
  EXPECT_THAT(Refused(R"({"input": "a", "temperature": "max_tokens"})").status.message(), HasSubstr(R"(is "max_tokens")"));
}

TEST_F(ResponsesRequest, UnknownFieldsAreIgnoredUnderTheirNames) {
  const std::string body = R"({"input": [{"role": "user", "content": "a", "mood": "!", "tone": 1},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "speed": 2}], "colour": 1,
      "reasoning": {"summary": "auto"}, "text": {"style": 1, "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "kind": 1}}})";
  const OpenAiRequest parsed = Parsed(body, UnknownFields::kIgnore);
  EXPECT_THAT(parsed.ignored_fields, ::testing::UnorderedElementsAre("input[0].tone", "input[1].speed", "colour",
                                                                     "reasoning.summary", "text.style", "text.format.kind"));
  EXPECT_EQ(*parsed.text, "user:a!;assistant:[c f {}];?");
  EXPECT_EQ(Refused(R"({"input": "a", "colour": 1})", UnknownFields::kRefuse).param, "colour");
  EXPECT_EQ(Refused(R"({"input": [{"role": "user", "content": "a", "tone": 1}]})", UnknownFields::kRefuse).param, "input[0].tone");
}

TEST_F(ResponsesRequest, LogprobsOfAMessageAreNotReportedBesideTools) {
  const std::string tools = R"("tools": [{"type": "function", "name": "f"}], "include": ["message.output_text.logprobs"])";
  EXPECT_EQ(Refused(R"({"input": "a", )" + tools + "}").param, "include");
  EXPECT_TRUE(Parsed(R"({"input": "a", "tool_choice": "none", )" + tools + "}").logprobs);
}

TEST_F(ResponsesRequest, AnswersAreBoundedWithWhatTheyRepeat) {
  const auto bytes = [&](const std::string& fields) {
    return AnswerBytes(Parsed(R"({"input": "a", "max_output_tokens": 10)" + fields + "}"), {.choices = 1, .output_tokens = 10});
  };
  const std::string text(10'000, 'x');
  EXPECT_GT(bytes(R"(, "instructions": ")" + text + "\""), bytes("") + 9'900);
  EXPECT_GT(bytes(R"(, "stream": true, "instructions": ")" + text + "\""), bytes("") + 29'900);
}

TEST_F(ResponsesRequest, LinesOfABatchMayAskForResponses) {
  const OpenAiRequestParser parser(&tokenizer_, kContext);
  BatchErrors::Error error;
  const auto line = [](const std::string& body) {
    return R"({"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": )" + body + "}";
  };
  const std::string schema = R"({"type":"object","properties":{"z":{"type":"null"},"a":{"type":"null"}}})";
  const std::optional<BatchLine> parsed =
      ParseBatchLine(line(R"({"input": "a", "text": {"format": {"type": "json_schema", "name": "n", "schema": )" + schema + "}}}"),
                     1, parser, &error);
  ASSERT_TRUE(parsed) << error.status.message();
  EXPECT_EQ(parsed->request.output->source.text, schema);
  EXPECT_FALSE(ParseBatchLine(line(R"({"input": 5})"), 1, parser, &error));
  EXPECT_EQ(error.param, "input");
}

}  // namespace
}  // namespace coppice::openai
