// Messages as clients send them, fields that ask for nothing, and variables of chat templates.
#include "openai/chat_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "openai/request.h"
#include "openai/unknown_fields.h"
#include "tests/support/byte_tokenizer.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kContext = 1000;
constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{% if m.name %}({{ m.name }}){% endif %}"
    "{% if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}{{ m.mood }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}quick{% endif %}{{ reasoning_effort }}{% if add_generation_prompt "
    "%}?{% endif %}";

class ChatFieldsTest : public ::testing::Test {
 protected:
  std::optional<OpenAiRequest> Parse(const json& body, BodyError* error, UnknownFields rule = UnknownFields::kIgnore) {
    const OpenAiRequestParser parser(&tokenizer_, kContext, OkStatus(), 0, {.unknown_fields = rule});
    const Endpoint endpoint = body.contains("prompt") ? Endpoint::kCompletions : Endpoint::kChatCompletions;
    return parser.Parse(endpoint, body, error);
  }
  // The request of a chat of one message, or of `messages`, with the fields.
  OpenAiRequest Parsed(const char* fields, const char* messages = R"([{"role": "user", "content": "a"}])",
                       UnknownFields rule = UnknownFields::kIgnore) {
    json body = json::parse(fields);
    if (!body.contains("prompt")) body["messages"] = json::parse(messages);
    BodyError error;
    std::optional<OpenAiRequest> parsed = Parse(body, &error, rule);
    EXPECT_TRUE(parsed) << error.param << ": " << error.status.message();
    return parsed.value_or(OpenAiRequest());
  }
  std::string Text(const char* messages) { return *Parsed("{}", messages, UnknownFields::kRefuse).text; }
  BodyError Refused(const char* fields, const char* messages = R"([{"role": "user", "content": "a"}])",
                    UnknownFields rule = UnknownFields::kIgnore) {
    json body = json::parse(fields);
    if (!body.contains("prompt")) body["messages"] = json::parse(messages);
    BodyError error;
    EXPECT_FALSE(Parse(body, &error, rule)) << fields;
    return error;
  }

  ByteTokenizer tokenizer_{kTemplate};
};

TEST_F(ChatFieldsTest, ContentMayBeNullAbsentOrEmpty) {
  for (const char* role : {"user", "system", "assistant"}) {
    for (const char* content : {"", R"(, "content": null)", R"(, "content": "")", R"(, "content": [])"}) {
      const std::string messages = std::string(R"([{"role": ")") + role + "\"" + content + "}]";
      EXPECT_EQ(Text(messages.c_str()), std::string(role) + ":;?") << messages;
    }
  }
  for (const char* content : {"", R"("content": null, )", R"("content": "", )"}) {
    const std::string messages =
        std::string(R"([{"role": "assistant", )") + content +
        R"("tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
                                    {"role": "tool", "tool_call_id": "1", "content": null}])";
    EXPECT_EQ(Text(messages.c_str()), "assistant:f{\"x\": 1};tool:;?") << messages;
  }
}

TEST_F(ChatFieldsTest, AnswersGoBackAsTheyCame) {
  EXPECT_EQ(Text(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "refusal": null, "annotations": [],
                      "audio": null, "function_call": null, "tool_calls": null}])"),
            "user:a;assistant:b;?");
  EXPECT_EQ(Text(R"([{"role": "assistant", "content": "b", "tool_calls": [], "annotations": [{"type": "url_citation"}]}])"),
            "assistant:b;?");
  EXPECT_EQ(Text(R"([{"role": "assistant", "content": null, "refusal": "No."}])"), "assistant:No.;?");
  EXPECT_EQ(Text(R"([{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}])"), "assistant:No.;?");
  EXPECT_EQ(Text(R"([{"role": "assistant", "content": "b", "reasoning_content": "hm"}])"), "assistant:b<hm>;?");
  EXPECT_EQ(Text(R"([{"role": "assistant", "content": "b", "reasoning": "hm"}])"), "assistant:b<hm>;?");
  EXPECT_EQ(Text(R"([{"role": "user", "content": "a", "tool_calls": []}])"), "user:a;?");
}

TEST_F(ChatFieldsTest, NamesOfAnyRole) {
  EXPECT_EQ(Text(R"([{"role": "system", "name": "rules", "content": "s"}, {"role": "user", "name": "Ada", "content": "a"},
                     {"role": "assistant", "name": "Bo", "content": "b"}])"),
            "system:s(rules);user:a(Ada);assistant:b(Bo);?");
  EXPECT_EQ(Refused("{}", R"([{"role": "user", "name": 5, "content": "a"}])").param, "messages[0].name");
}

TEST_F(ChatFieldsTest, UnknownRoles) {
  const BodyError error = Refused("{}", R"([{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}])");
  EXPECT_EQ(error.param, "messages");
  EXPECT_THAT(error.status.message(), HasSubstr("messages[1].role is \"wizard\""));
  EXPECT_EQ(Text(R"([{"role": "developer", "content": "a"}])"), "system:a;?");
}

TEST_F(ChatFieldsTest, FieldsOfMessagesGoAlongWhereTheTemplateReadsThem) {
  const OpenAiRequest parsed = Parsed("{}", R"([{"role": "user", "content": "a", "mood": "glad", "weight": 1}])");
  EXPECT_EQ(parsed.text, "user:aglad;?");
  EXPECT_THAT(parsed.ignored_fields, ElementsAre("messages[0].weight"));
  EXPECT_EQ(Refused("{}", R"([{"role": "user", "content": "a", "weight": 1}])", UnknownFields::kRefuse).param,
            "messages[0].weight");
}

TEST_F(ChatFieldsTest, VariablesOfTheTemplate) {
  EXPECT_EQ(Parsed(R"({"chat_template_kwargs": {"enable_thinking": false}})").text, "user:a;quick?");
  EXPECT_EQ(Parsed(R"({"enable_thinking": false})").text, "user:a;quick?");
  EXPECT_EQ(Parsed(R"({"reasoning_effort": "any", "verbosity": {"x": 1}})").text, "user:a;any?");
  EXPECT_THAT(Parsed(R"({"verbosity": "low"})").ignored_fields, IsEmpty());
  EXPECT_THAT(Parsed(R"({"chat_template_kwargs": {"colour": 1}, "enable_thinking": true})").ignored_fields,
              ElementsAre("chat_template_kwargs.colour"));
  EXPECT_EQ(Refused(R"({"chat_template_kwargs": {"colour": 1}})", "[{}]", UnknownFields::kRefuse).param, "messages[0].role");
  EXPECT_EQ(Refused(R"({"chat_template_kwargs": {"colour": 1}})", R"([{"role": "user"}])", UnknownFields::kRefuse).param,
            "chat_template_kwargs.colour");
  EXPECT_EQ(Refused(R"({"chat_template_kwargs": {"messages": []}})").param, "chat_template_kwargs.messages");
  EXPECT_EQ(Refused(R"({"chat_template_kwargs": 5})").param, "chat_template_kwargs");
  EXPECT_EQ(Refused(R"({"documents": ["a"]})").param, "documents");
  EXPECT_THAT(Parsed(R"({"documents": []})").ignored_fields, IsEmpty());
}

TEST_F(ChatFieldsTest, WhereThePromptEnds) {
  const char* const begun = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "Well, "}])";
  EXPECT_EQ(Parsed(R"({"add_generation_prompt": false})", begun).text, "user:a;assistant:Well, ;");
  for (const char* fields :
       {R"({"continue_final_message": true})", R"({"continue_final_message": true, "add_generation_prompt": false})"})
    EXPECT_EQ(Parsed(fields, begun).text, "user:a;assistant:Well, ");
  EXPECT_EQ(Refused(R"({"continue_final_message": true, "add_generation_prompt": true})", begun).param, "add_generation_prompt");
  EXPECT_EQ(Refused(R"({"continue_final_message": true})", R"([{"role": "assistant", "content": null}])").param, "messages");
}

TEST_F(ChatFieldsTest, FieldsThatAskForNothing) {
  const OpenAiRequest parsed = Parsed(R"({"store": false, "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "s",
      "metadata": {"a": "b"}, "modalities": ["text"], "prediction": {"type": "content", "content": "x"}, "stop": "", "top_k": -1,
      "max_tokens": -1, "logit_bias": {}, "stream_options": {"include_usage": true, "include_obfuscation": true}, "n": 1.0, "seed": 8.0,
      "min_tokens": 2.0, "timeout": -1, "functions": [], "function_call": "none", "typical_p": 1, "use_beam_search": false,
      "best_of": 1, "skip_special_tokens": true, "audio": null})",
                                      R"([{"role": "user", "content": "a"}])", UnknownFields::kRefuse);
  EXPECT_THAT(parsed.request.stop, IsEmpty());
  EXPECT_EQ(parsed.request.sampling.top_k, 0);
  EXPECT_EQ(parsed.max_tokens, std::nullopt);
  EXPECT_EQ(parsed.request.sampling.seed, 8);
  EXPECT_EQ(parsed.request.min_tokens, 2);
  EXPECT_EQ(parsed.request.timeout_seconds, 0);
  EXPECT_FALSE(parsed.include_usage);
  EXPECT_THAT(parsed.ignored_fields, IsEmpty());
  EXPECT_THAT(Parsed(R"({"stop": ["", "x", ""]})").request.stop, ElementsAre("x"));
  const OpenAiRequest completion =
      Parsed(R"({"prompt": "a", "suffix": "", "logprobs": false, "echo": false, "best_of": 1.0})", "[]", UnknownFields::kRefuse);
  EXPECT_FALSE(completion.logprobs);
}

TEST_F(ChatFieldsTest, WholeNumbersMayHaveAFraction) {
  const OpenAiRequest parsed = Parsed(R"({"prompt": [1.0, 2], "seed": -1.0, "stop_token_ids": [3.0]})", "[]");
  EXPECT_THAT(parsed.prompt_ids, ElementsAre(1, 2));
  EXPECT_EQ(parsed.request.sampling.seed, static_cast<uint64_t>(-1));
  EXPECT_THAT(parsed.request.stop_token_ids, ElementsAre(3));
  for (const char* const fields :
       {R"({"prompt": [1.5]})", R"({"prompt": [-1.0]})", R"({"prompt": [2147483648.0]})", R"({"prompt": [1e300]})"}) {
    EXPECT_EQ(Refused(fields, "[]").param, "prompt") << fields;
  }
  EXPECT_EQ(Refused(R"({"prompt": "a", "seed": -1.5})", "[]").param, "seed");
}

TEST_F(ChatFieldsTest, NoLimitIsTheEndOfTheContext) {
  const OpenAiRequestParser parser(&tokenizer_, kContext);
  for (const auto& [limit, tokens] : std::vector<std::pair<json, int32_t>>{{nullptr, 16}, {-1, kContext - 3}, {7.0, 7}}) {
    BodyError error;
    std::optional<OpenAiRequest> parsed =
        parser.Parse(Endpoint::kCompletions, {{"prompt", {1, 2, 3}}, {"max_tokens", limit}}, &error);
    ASSERT_TRUE(parsed) << error.status.message();
    parser.SetPrompt({1, 2, 3}, &*parsed);
    EXPECT_EQ(parsed->request.max_tokens, tokens);
  }
}

TEST_F(ChatFieldsTest, WhatIsUnknownIsIgnoredAndReported) {
  const char* const fields =
      R"({"cache_prompt": true, "provider": {"order": ["x"]}, "stream": true, "stream_options": {"continuous_usage_stats": true, "else": 1}})";
  EXPECT_THAT(Parsed(fields).ignored_fields,
              ElementsAre("stream_options.continuous_usage_stats", "stream_options.else", "cache_prompt", "provider"));
  EXPECT_THAT(Parsed(R"({"": 1})").ignored_fields, ElementsAre(R"("")"));
  EXPECT_EQ(Refused(R"({"cache_prompt": true})", "[{\"role\": \"user\"}]", UnknownFields::kRefuse).param, "cache_prompt");
  for (const auto& [name, value] : std::vector<std::pair<const char*, const char*>>{{"typical_p", "0.5"},
                                                                                    {"guided_regex", "\"a\""},
                                                                                    {"functions", "[{}]"},
                                                                                    {"echo", "true"},
                                                                                    {"prompt", "\"b\""},
                                                                                    {"chat_template", "\"x\""},
                                                                                    {"include_stop_str_in_output", "true"},
                                                                                    {"do_sample", "false"},
                                                                                    {"think", "false"},
                                                                                    {"web_search_options", "{\"a\": 1}"},
                                                                                    {"repeat_penalty", "1.1"},
                                                                                    {"skip_special_tokens", "false"}}) {
    json body = {{"messages", {{{"role", "user"}, {"content", "a"}}}}};
    body[name] = json::parse(value);
    BodyError error;
    const OpenAiRequestParser parser(&tokenizer_, kContext, OkStatus(), 0, {.unknown_fields = UnknownFields::kIgnore});
    EXPECT_FALSE(parser.Parse(Endpoint::kChatCompletions, body, &error)) << name;
    EXPECT_EQ(error.param, name);
    EXPECT_THAT(error.status.message(), HasSubstr("would change the answer"));
  }
  EXPECT_THAT(Refused(R"({"repeat_penalty": 1.1})").status.message(), HasSubstr("use repetition_penalty"));
}

TEST_F(ChatFieldsTest, FieldsOfToolsAreShownToTheModel) {
  tokenizer_ = ByteTokenizer("{{ tools | tojson }}<tool_call>{{ messages[0].content }}");
  const OpenAiRequest parsed = Parsed(
      R"({"tool_choice": "auto", "tools": [{"type": "function", "function": {"name": "f", "returns": "text"}, "cost": 1}]})");
  EXPECT_THAT(*parsed.text, HasSubstr(R"("returns": "text")"));
  EXPECT_THAT(parsed.ignored_fields, IsEmpty());
}

TEST(UnknownFields, NamesForOneLine) {
  EXPECT_EQ(Listed({"a", "b\r\nx: y"}), "a, b\\x0d\\x0ax: y");
  EXPECT_THAT(Listed(std::vector<std::string>(20, "a")), HasSubstr("and 4 more"));
  EXPECT_EQ(*ParseUnknownFields("ignore"), UnknownFields::kIgnore);
  EXPECT_FALSE(ParseUnknownFields("maybe").ok());
}

}  // namespace
}  // namespace coppice::openai
