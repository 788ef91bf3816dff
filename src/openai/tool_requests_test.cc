// Requests with tools: what the model is shown, what is refused, what the answer looks like, whole and as a stream; and grammars
// under which every output is a call that its function's schema allows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar_compiler.h"
#include "openai/batch_input.h"
#include "openai/prefixes_by_name.h"
#include "openai/prompt_fields.h"
#include "openai/request.h"
#include "openai/response_body.h"
#include "openai/response_stream.h"
#include "openai/tool_grammar.h"
#include "runner/step_batch.h"
#include "tokenizer/tokenizer.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::string Template(const std::string& name) {
  const std::string path = std::string(COPPICE_TEST_DATA) + "/tokenizer/templates/" + name + ".jinja";
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << "cannot read " << path;
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

// A token a byte, and one control token, 256, which is written as `mark`.
class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(Info info, std::string mark = "") : Tokenizer(std::move(info)), mark_(std::move(mark)) {
    for (int byte = 0; byte < 256; ++byte) bytes_.push_back(static_cast<char>(byte));
  }
  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions&) const override {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      const bool is_mark = !mark_.empty() && text.starts_with(mark_);
      ids.push_back(is_mark ? 256 : static_cast<unsigned char>(text.front()));
      text.remove_prefix(is_mark ? mark_.size() : 1);
    }
    return ids;
  }
  std::string_view TokenBytes(int32_t id, bool keep_special) const override {
    if (id == 256) return keep_special ? std::string_view(mark_) : std::string_view();
    return std::string_view(bytes_).substr(static_cast<size_t>(id), 1);
  }

 private:
  std::string mark_, bytes_;
};

constexpr int32_t kVocab = 257;

// A model with one of the published templates.
struct Model {
  explicit Model(const std::string& name, std::string mark = "") : Model(Tokenizer::Info{.chat_template = Template(name)}, mark) {}
  Model(Tokenizer::Info info, std::string mark)
      : tokenizer(std::move(info), std::move(mark)), parser(&tokenizer, 10'000, OkStatus()) {}

  OpenAiRequest Parsed(const std::string& body) const {
    BodyError error;
    const ordered_json tools = ToolsInOrder(body).value();
    std::optional<OpenAiRequest> parsed =
        parser.Parse(Endpoint::kChatCompletions, json::parse(body), &error, {}, tools.is_null() ? nullptr : &tools);
    EXPECT_TRUE(parsed) << error.param << ": " << error.status.message();
    if (parsed && parsed->output && compiler.ok()) {
      const auto compiled = (*compiler)->Compile(parsed->output->source);
      EXPECT_TRUE(compiled.ok()) << compiled.status().message();
      if (compiled.ok()) parsed->request.constraint = *compiled;
    }
    return parsed.value_or(OpenAiRequest());
  }
  BodyError Refused(const json& body) const {
    BodyError error;
    EXPECT_FALSE(parser.Parse(Endpoint::kChatCompletions, body, &error)) << body;
    return error;
  }
  // Constraints are there in builds with XGrammar.
  bool has_grammars() const { return compiler.ok(); }

  ByteTokenizer tokenizer;
  OpenAiRequestParser parser;
  const Result<std::unique_ptr<GrammarCompiler>> compiler = GrammarCompiler::Create(tokenizer, kVocab);
};

const char* const kBody = R"({"messages": [{"role": "user", "content": "Rome?"}], "tools": [{"type": "function", "function":
    {"name": "weather", "description": "Now", "parameters": {"type": "object", "properties": {"town": {"type": "string", "maxLength": 4},
     "days": {"type": "integer", "enum": [1, 2]}}, "required": ["town", "days"]}}}]})";

json Body(const std::string& more = "{}") {
  json body = json::parse(kBody);
  body.update(json::parse(more));
  return body;
}

TEST(ToolRequests, TheModelIsShownTheToolsInTheClientsOrder) {
  const OpenAiRequest parsed = Model("qwen2.5-instruct").Parsed(kBody);
  EXPECT_THAT(*parsed.text, HasSubstr(R"({"type": "function", "function": {"name": "weather", "description": "Now", "parameters": )"
                                      R"({"type": "object", "properties": {"town": {"type": "string", "maxLength": 4}, )"
                                      R"("days": {"type": "integer", "enum": [1, 2]}}, "required": ["town", "days"]}}})"));
  ASSERT_TRUE(parsed.tools);
  EXPECT_TRUE(parsed.tools->parallel);
  EXPECT_FALSE(parsed.request.constraint);
  EXPECT_THAT(parsed.request.visible_tokens, IsEmpty());
}

TEST(ToolRequests, APrefixMayBringTools) {
  const Model model("qwen2.5-instruct");
  const ordered_json tools = ToolsInOrder(kBody).value();
  BodyError error;
  json body = json::parse(kBody);
  body["messages"] = {{{"role", "system"}, {"content", "Brief."}}};
  NamedPrefix prefix = ParseNamedPrefix(body, &error, &tools).value();
  EXPECT_EQ(ToBody(prefix)["tools"].dump(), tools.dump());
  const auto ids = model.parser.EncodePrefix(prefix, &error);
  ASSERT_TRUE(ids) << error.status.message();
  const auto find = [&](const std::string&) { return std::make_shared<const NamedPrefix>(prefix); };
  const auto ask = [&](const char* more) {
    json request = {{"messages", {{{"role", "user"}, {"content", "Rome?"}}}}, {"prefix", "p"}};
    request.update(json::parse(more));
    return model.parser.Parse(Endpoint::kChatCompletions, request, &error, find);
  };
  // As if prefix and request were sent together.
  json whole = body;
  whole["messages"].push_back({{"role", "user"}, {"content", "Rome?"}});
  const auto sent = model.parser.Parse(Endpoint::kChatCompletions, whole, &error, {}, &tools);
  const auto named = ask("{}");
  ASSERT_TRUE(named && sent) << error.status.message();
  EXPECT_EQ(named->text, sent->text);
  ASSERT_TRUE(named->tools);
  EXPECT_EQ(named->tools->names, sent->tools->names);
  const std::vector<int32_t> prompt = model.parser.Encode(*named).value();
  EXPECT_TRUE(std::ranges::equal(*ids, std::span(prompt).first(std::min(ids->size(), prompt.size()))));
  EXPECT_THAT(model.tokenizer.Decode(*ids, true), HasSubstr("\"days\": {\"type\": \"integer\""));
  // The choice is the request's.
  EXPECT_FALSE(ask(R"({"tool_choice": "none"})")->tools);
  EXPECT_TRUE(ask(R"({"tool_choice": {"type": "function", "function": {"name": "weather"}}})")->output);
  EXPECT_FALSE(ask(R"({"tool_choice": {"type": "function", "function": {"name": "other"}}})"));
  EXPECT_EQ(error.param, "tool_choice");
  EXPECT_FALSE(ask(R"({"tools": []})"));
  EXPECT_EQ(error.param, "tools");
}

TEST(ToolRequests, PrefixesWhoseToolsCannotBeShown) {
  const Model model(Tokenizer::Info{.chat_template = "{{ messages[0].content }}"}, "");
  BodyError error;
  const NamedPrefix prefix = ParseNamedPrefix(json::parse(kBody), &error).value();
  EXPECT_FALSE(model.parser.EncodePrefix(prefix, &error));
  EXPECT_EQ(error.param, "tools");
  EXPECT_FALSE(ParseNamedPrefix(json::parse(R"({"prompt": "a", "tools": []})"), &error));
  EXPECT_EQ(error.param, "tools");
  EXPECT_FALSE(ParseNamedPrefix(Body(R"({"tools": [{"type": "function"}]})"), &error));
  EXPECT_EQ(error.param, "tools[0].function");
}

TEST(ToolRequests, ToolsOfPrefixesInAFileComeInItsOrder) {
  const Model model("qwen2.5-instruct");
  const auto find = ParsePrefixesByName(R"({"a": {"prompt": [1, 2]}, "p": )" + std::string(kBody) + "}", "prefixes", model.parser);
  ASSERT_TRUE(find.ok()) << find.status().message();
  EXPECT_EQ(ToBody(*(*find)("p"))["tools"].dump(), ToolsInOrder(kBody).value().dump());
  EXPECT_TRUE((*find)("a"));
}

TEST(ToolRequests, AModelMayHaveATemplateForChatsWithTools) {
  const Model model({.chat_template = "{{ messages[0].content }}", .tool_chat_template = Template("hermes-3-tool-use")}, "");
  EXPECT_THAT(*model.Parsed(kBody).text, HasSubstr("weather(town: str, days: int) - Now"));
  EXPECT_EQ(model.Parsed(R"({"messages": [{"role": "user", "content": "a"}]})").text, "a");
}

TEST(ToolRequests, CallsAndTheirResultsAreMessages) {
  const char* const body = R"({"messages": [{"role": "user", "content": "Rome?"},
      {"role": "assistant", "content": null, "refusal": null, "tool_calls": [{"id": "a1b2c3d4e", "type": "function", "index": 0, "function":
        {"name": "weather", "arguments": "{\"town\": \"Rome\", \"days\": 1}"}}]},
      {"role": "tool", "tool_call_id": "a1b2c3d4e", "name": "weather", "content": [{"type": "text", "text": "dry"}]}]})";
  EXPECT_THAT(*Model("qwen2.5-instruct").Parsed(body).text,
              HasSubstr("<|im_start|>assistant\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"Rome\", \"days\": "
                        "1}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\ndry\n</tool_response>"));
  EXPECT_THAT(*Model("mistral-nemo-instruct").Parsed(body).text,
              HasSubstr(R"([TOOL_CALLS][{"name": "weather", "arguments": {"town": "Rome", "days": 1}, "id": "a1b2c3d4e"}])"));
  EXPECT_THAT(*Model("llama-3.1-instruct").Parsed(body).text,
              HasSubstr(R"({"name": "weather", "parameters": {"town": "Rome", "days": 1}})"));
  // Arguments that are no JSON object go back as the model wrote them; empty ones become an empty object.
  const auto with = [](const char* arguments) {
    return json({{"messages",
                  json::array({{{"role", "assistant"},
                                {"tool_calls", json::array({{{"id", "1"},
                                                             {"type", "function"},
                                                             {"function", {{"name", "f"}, {"arguments", arguments}}}}})}}})}})
        .dump();
  };
  EXPECT_THAT(*Model("qwen2.5-instruct").Parsed(with("{oops")).text, HasSubstr(R"("arguments": "{oops"})"));
  EXPECT_THAT(*Model("qwen2.5-instruct").Parsed(with("")).text, HasSubstr(R"("arguments": {}})"));
}

TEST(ToolRequests, MessagesAreWrittenAsTheyWereRead) {
  const json body =
      json::parse(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"z\":1,\"a\":[2]}"}}]},
      {"role": "tool", "content": "r", "tool_call_id": "1"}]})");
  FieldReader fields(body);
  const std::vector<ChatMessage> messages = TakeMessages(fields);
  ASSERT_EQ(messages.size(), 3u);
  json written = body["messages"];
  written[1]["content"] = "";  // as null, or none
  for (size_t i = 0; i < messages.size(); ++i) EXPECT_EQ(json::parse(ToMessage(messages[i]).dump()), written[i]);
}

TEST(ToolRequests, WhatIsRefused) {
  const Model model("qwen2.5-instruct");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"tools": {}})", "tools"},
      {R"({"tools": [5]})", "tools[0]"},
      {R"({"tools": [{"type": "retrieval", "function": {"name": "f"}}]})", "tools[0].type"},
      {R"({"tools": [{"type": "function"}]})", "tools[0].function"},
      {R"({"tools": [{"type": "function", "function": {"name": ""}}]})", "tools[0].function.name"},
      {R"({"tools": [{"type": "function", "function": {"name": "a b"}}]})", "tools[0].function.name"},
      {R"({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]})", "tools[0].function.parameters"},
      {R"({"tools": [{"type": "function", "function": {"name": "f", "arguments": {}}}]})", "tools[0].function.arguments"},
      {R"({"tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}]})", "tools"},
      {R"({"tool_choice": "maybe"})", "tool_choice"},
      {R"({"tool_choice": {"type": "function", "function": {"name": "rain"}}})", "tool_choice"},
      {R"({"tool_choice": {"type": "function"}})", "tool_choice"},
      {R"({"tools": null, "tool_choice": "required"})", "tool_choice"},
      {R"({"parallel_tool_calls": 1})", "parallel_tool_calls"},
      {R"({"messages": [{"role": "tool", "content": "a"}]})", "messages[0].tool_call_id"},
      {R"({"messages": [{"role": "assistant", "audio": {"id": "x"}}]})", "messages[0].audio"},
      {R"({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]})", "messages[0].function_call"},
      {R"({"messages": [{"role": "user", "content": "a", "": 1}]})", "messages[0]"},
      {R"({"messages": [{"role": "assistant", "tool_calls": {"id": "1"}}]})", "messages[0].tool_calls"},
      {R"({"messages": [{"role": "user", "content": "a", "tool_calls": [{"id": "1"}]}]})", "messages[0].tool_calls"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"arguments": ""}}]}]})",
       "messages[0].tool_calls[0].function.name"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]})", "messages[0].tool_calls[0].type"},
      {R"({"messages": [{"role": "user", "content": "a", "tool_call_id": "1"}]})", "messages[0].tool_call_id"},
  };
  for (const auto& [more, param] : cases) EXPECT_EQ(model.Refused(Body(more)).param, param) << more;
  json many = Body();
  many["tools"] = json::array();
  for (int i = 0; i < 129; ++i) many["tools"].push_back({{"type", "function"}, {"function", {{"name", "f" + std::to_string(i)}}}});
  EXPECT_EQ(model.Refused(many).param, "tools");
  std::string members = "{";
  for (int i = 0; i < 600; ++i) members += (i ? "," : "") + ("\"" + std::to_string(i) + "\":0");
  EXPECT_EQ(ToolsInOrder("{\"tools\":[" + members + "}]}").status().code(), StatusCode::kInvalidArgument);
}

TEST(ToolRequests, ATemplateThatDoesNotShowToolsRefusesThem) {
  for (const char* name : {"gemma-3-it", "smollm2-instruct", "zephyr", "llama-3-instruct"}) {
    const BodyError error = Model(name).Refused(Body());
    EXPECT_EQ(error.param, "tools") << name;
    EXPECT_THAT(error.status.message(), HasSubstr("does not show it the tools")) << name;
  }
  EXPECT_THAT(Model("qwen3-coder").Refused(Body()).status.message(), HasSubstr("a form that is not known"));
  // Without a choice to call one, they are not shown.
  EXPECT_FALSE(Model("smollm2-instruct").Parsed(Body(R"({"tool_choice": "none"})").dump()).tools);
  EXPECT_THAT(*Model("qwen2.5-instruct").Parsed(Body(R"({"tool_choice": "none"})").dump()).text, Not(HasSubstr("weather")));
}

TEST(ToolRequests, StylesOfThePublishedTemplates) {
  const std::pair<const char*, ToolCallStyle> cases[] = {
      {"hermes-3-tool-use", ToolCallStyle::kHermes},
      {"qwen2.5-instruct", ToolCallStyle::kHermes},
      {"qwen3", ToolCallStyle::kHermes},
      {"mistral-nemo-instruct", ToolCallStyle::kMistral},
      {"llama-3.1-instruct", ToolCallStyle::kLlama},
      {"llama-3.2-instruct", ToolCallStyle::kLlama},
      {"llama-3.3-instruct", ToolCallStyle::kLlama},
  };
  for (const auto& [name, style] : cases) {
    const OpenAiRequest parsed = Model(name).Parsed(kBody);
    ASSERT_TRUE(parsed.tools) << name;
    EXPECT_EQ(parsed.tools->format.style, style) << name;
  }
}

TEST(ToolRequests, AMarkThatIsAControlTokenHasTextInTheOutput) {
  const Model model("mistral-nemo-instruct", "[TOOL_CALLS]");
  EXPECT_EQ(model.Parsed(kBody).request.visible_tokens, std::vector<int32_t>{256});
  EXPECT_EQ(model.Refused(Body(R"({"response_format": {"type": "json_object"}})")).param, "response_format");
  if (!model.has_grammars()) return;
  const OpenAiRequest required = model.Parsed(Body(R"({"tool_choice": "required"})").dump());
  EXPECT_EQ(model.parser.Encode(required)->back(), 256);  // which no grammar can ask for
}

TEST(ToolRequests, LinesOfABatchTakeTools) {
  const Model model("qwen2.5-instruct");
  BatchErrors::Error error;
  const std::string line =
      R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": )" + std::string(kBody) + "}";
  const std::optional<BatchLine> parsed = ParseBatchLine(line, 1, model.parser, &error);
  ASSERT_TRUE(parsed) << error.status.message();
  EXPECT_THAT(*parsed->request.text, HasSubstr(R"({"town": {"type": "string", "maxLength": 4}, "days")"));
}

// ----------------------------------------------------------------------------------------------------------------- answers

const ResponseFacts kFacts = {.id = "7", .created = 5, .model = "m"};
const char* const kOutput =
    "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"Rome\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";

json Choice(const OpenAiRequest& request, const std::string& text, FinishReason reason) {
  RequestOutput output;
  output.Add({.index = 0, .text = text, .finish_reason = reason, .request_done = true});
  return json::parse(TextOf(ResponseBody({{request, output}}, kFacts, nullptr).get()))["choices"][0];
}

TEST(ToolAnswers, CallsStandBesideTheText) {
  const OpenAiRequest request = Model("qwen2.5-instruct").Parsed(kBody);
  const json choice = Choice(request, kOutput, FinishReason::kStop);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Let me see.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 2u);
  const json& call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_THAT(call["id"].get<std::string>(), StartsWith("call_"));
  EXPECT_NE(call["id"], choice["message"]["tool_calls"][1]["id"]);
  EXPECT_EQ(call["function"], json({{"name", "weather"}, {"arguments", "{\"town\": \"Rome\"}"}}));

  EXPECT_EQ(Choice(request, std::string(kOutput).substr(12), FinishReason::kStop)["message"]["content"], nullptr);
  const json text = Choice(request, "No. ", FinishReason::kStop);
  EXPECT_EQ(text["message"], json({{"role", "assistant"}, {"content", "No. "}}));
  EXPECT_EQ(text["finish_reason"], "stop");
  EXPECT_EQ(Choice(request, kOutput, FinishReason::kLength)["finish_reason"], "length");
}

TEST(ToolAnswers, AStreamSaysWhatTheWholeAnswerSays) {
  OpenAiRequest request = Model("qwen2.5-instruct").Parsed(kBody);
  request.stream = true;
  const json whole = Choice(request, kOutput, FinishReason::kStop);
  ResponseStream stream(&request, kFacts, 0, nullptr);
  std::string frames;
  for (const char* c = kOutput; *c != '\0'; ++c)
    stream.Append(
        {.index = 0, .text = std::string(1, *c), .finish_reason = c[1] ? std::nullopt : std::optional(FinishReason::kStop)},
        &frames);
  std::string content, reason;
  json calls = json::array();
  std::istringstream lines(frames);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const json choice = json::parse(line.substr(6))["choices"][0];
    if (!choice["finish_reason"].is_null()) reason = choice["finish_reason"];
    content += choice["delta"].value("content", "");
    for (const json& delta : choice["delta"].value("tool_calls", json::array())) {
      if (delta["index"] == calls.size()) {
        calls.push_back(
            {{"id", delta["id"]}, {"type", delta["type"]}, {"function", {{"name", delta["function"]["name"]}, {"arguments", ""}}}});
      } else {
        EXPECT_FALSE(delta.contains("id"));
      }
      std::string& arguments = calls[delta["index"].get<size_t>()]["function"]["arguments"].get_ref<std::string&>();
      arguments += delta["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_EQ(content, whole["message"]["content"]);
  EXPECT_EQ(calls, whole["message"]["tool_calls"]);
  EXPECT_EQ(reason, "tool_calls");
}

// ---------------------------------------------------------------------------------------------------------------- grammars

// An output that the request's constraint allows, token by token at random; nothing where it did not end in time.
std::optional<std::string> Walk(const Model& model, const OpenAiRequest& request, uint32_t seed) {
  std::mt19937 random(seed);
  const std::unique_ptr<ConstraintState> state = request.request.constraint->Begin();
  std::vector<uint32_t> mask(MaskWords(kVocab));
  std::string text;
  for (int i = 0; i < 600; ++i) {
    const Result<bool> may_end = state->FillMask(mask);
    EXPECT_TRUE(may_end.ok()) << may_end.status().message();
    std::vector<int32_t> allowed, likely;
    for (int32_t t = 0; t < kVocab; ++t) {
      if ((mask[t / 32] >> t % 32 & 1) == 0) continue;
      allowed.push_back(t);
      if (t > ' ' && t <= '~') likely.push_back(t);  // white space between tokens may go on for long
    }
    if (*may_end && (allowed.empty() || random() % 3 == 0)) return text;
    EXPECT_FALSE(allowed.empty()) << text;
    if (allowed.empty()) return std::nullopt;
    const std::vector<int32_t>& from = likely.empty() ? allowed : likely;
    const int32_t token = from[random() % from.size()];
    text += model.tokenizer.TokenBytes(token, false);
    EXPECT_TRUE(state->Accept(token).ok());
  }
  return std::nullopt;
}

void ExpectValidArguments(const json& call) {
  EXPECT_EQ(call["function"]["name"], "weather");
  const json arguments = json::parse(call["function"]["arguments"].get<std::string>(), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(arguments.is_object()) << call;
  EXPECT_EQ(arguments.size(), 2u) << call;
  EXPECT_TRUE(arguments["town"].is_string());
  EXPECT_TRUE(arguments["days"] == 1 || arguments["days"] == 2) << call;
}

TEST(ToolGrammars, EveryOutputOfARequiredCallIsOne) {
  const std::pair<const char*, const char*> models[] = {{"qwen2.5-instruct", ""},      {"qwen2.5-instruct", "<tool_call>"},
                                                        {"mistral-nemo-instruct", ""}, {"mistral-nemo-instruct", "[TOOL_CALLS]"},
                                                        {"llama-3.1-instruct", ""},    {"llama-3.1-instruct", "<|python_tag|>"}};
  for (const auto& [name, mark] : models) {
    const Model model(name, mark);
    if (!model.has_grammars()) GTEST_SKIP() << "a build without XGrammar";
    for (const char* more :
         {R"({"tool_choice": "required"})", R"({"tool_choice": {"type": "function", "function": {"name": "weather"}}})",
          R"({"tool_choice": "required", "parallel_tool_calls": false})"}) {
      SCOPED_TRACE(std::string(name) + " " + mark + " " + more);
      const OpenAiRequest request = model.Parsed(Body(more).dump());
      ASSERT_TRUE(request.request.constraint);
      int ended = 0;
      size_t most = 0;
      for (uint32_t seed = 0; seed < 20; ++seed) {
        const std::optional<std::string> text = Walk(model, request, seed);
        if (!text) continue;
        ++ended;
        const json choice = Choice(request, *text, FinishReason::kStop);
        EXPECT_EQ(choice["finish_reason"], "tool_calls") << *text;
        EXPECT_EQ(choice["message"]["content"], nullptr) << *text;
        const json calls = choice["message"].value("tool_calls", json::array());
        EXPECT_FALSE(calls.empty()) << *text;
        most = std::max(most, calls.size());
        for (const json& call : calls) ExpectValidArguments(call);
      }
      EXPECT_GT(ended, 10);
      const bool may_be_many = std::string_view(more).find("required\"}") != std::string_view::npos;
      EXPECT_LE(most, may_be_many ? 600u : 1u);
    }
  }
}

TEST(ToolGrammars, AStrictFunctionsCallsAreValidWhereverTheyCome) {
  for (const char* name : {"qwen2.5-instruct", "mistral-nemo-instruct", "llama-3.1-instruct"}) {
    const Model model(name);
    if (!model.has_grammars()) GTEST_SKIP() << "a build without XGrammar";
    SCOPED_TRACE(name);
    json body = Body();
    body["tools"][0]["function"]["strict"] = true;
    const OpenAiRequest request = model.Parsed(body.dump());
    ASSERT_TRUE(request.request.constraint);
    EXPECT_THAT(*request.text, Not(HasSubstr("strict")));  // said to the server, not to the model
    const auto accepts = [&](std::string_view text) {
      const std::unique_ptr<ConstraintState> state = request.request.constraint->Begin();
      std::vector<uint32_t> mask(MaskWords(kVocab));
      for (const char c : text) {
        const auto token = static_cast<unsigned char>(c);
        EXPECT_TRUE(state->FillMask(mask).ok());
        if ((mask[token / 32] >> token % 32 & 1) == 0) return false;
        EXPECT_TRUE(state->Accept(token).ok());
      }
      return *state->FillMask(mask);
    };
    EXPECT_TRUE(accepts("It is dry."));
    const bool hermes = std::string_view(name).starts_with("qwen"), llama = std::string_view(name).starts_with("llama");
    const auto call = [&](const std::string& arguments) {
      if (hermes) return "So:\n<tool_call>\n{\"name\": \"weather\", \"arguments\": " + arguments + "}\n</tool_call>";
      if (llama) return "{\"name\": \"weather\", \"parameters\": " + arguments + "}";
      return "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": " + arguments + "}]";
    };
    EXPECT_TRUE(accepts(call(R"({"days": 2, "town": "Rome"})")));  // in the order of the schema, which this JSON sorts
    EXPECT_FALSE(accepts(call(R"({"days": 3, "town": "Rome"})")));
    EXPECT_FALSE(accepts(call(R"({"days": 2, "town": 5})")));
  }
}

TEST(ToolGrammars, TextHasTheFormThatWasAskedFor) {
  const Model model("qwen2.5-instruct");
  if (!model.has_grammars()) GTEST_SKIP() << "a build without XGrammar";
  EXPECT_EQ(model.Refused(Body(R"({"regex": "a{2000}"})")).param, "regex");
  const OpenAiRequest request = model.Parsed(Body(R"x({"regex": "(yes|no)"})x").dump());
  int texts = 0, calls = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const std::optional<std::string> text = Walk(model, request, seed);
    if (!text) continue;
    const json choice = Choice(request, *text, FinishReason::kStop);
    if (choice["finish_reason"] == "tool_calls") {
      ++calls;
    } else {
      ++texts;
      EXPECT_TRUE(*text == "yes" || *text == "no") << *text;
    }
  }
  EXPECT_GT(texts, 5);
  EXPECT_GT(calls, 0);
}

TEST(ToolGrammars, ASchemaThatCannotBeFollowedIsNamed) {
  const Model model("qwen2.5-instruct");
  json body = Body(R"({"tool_choice": "required"})");
  body["tools"][0]["function"]["parameters"]["properties"]["town"] = {{"type", "array"}, {"uniqueItems", true}};
  const BodyError error = model.Refused(body);
  EXPECT_EQ(error.param, "tools[0].function.parameters");
  EXPECT_THAT(error.status.message(), HasSubstr("#/properties/town/uniqueItems is not supported"));
  if (!model.has_grammars()) return;
  body["tools"][0]["function"]["strict"] = false;
  EXPECT_TRUE(model.Parsed(body.dump()).request.constraint);
}

}  // namespace
}  // namespace coppice::openai
