// Answers of /v1/responses: items, whole and as events, however the output is cut into pieces.
#include "openai/responses_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/testing/fake_tokenizer.h"
#include "openai/response_body.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

const ResponseFacts kFacts = {.id = "7", .created = 5, .model = "m"};
const TokenUsage kUsage = {.prompt = 4, .cached = 3, .completion = 2};

OpenAiRequest Request(bool with_tools = false) {
  OpenAiRequest request{.endpoint = Endpoint::kResponses, .stream = true};
  request.responses = std::make_shared<const ResponsesForm>(ResponsesForm{.echo = R"("store":false)"});
  if (!with_tools) return request;
  ToolCalls calls = {.format = {.style = ToolCallStyle::kHermes, .begin = "<tool_call>", .end = "</tool_call>"},
                     .names = {"f", "g"}};
  request.tools = std::make_shared<const ToolCalls>(std::move(calls));
  return request;
}

// The data of events, whose names are their types and whose numbers count.
std::vector<json> Events(std::string_view text) {
  std::vector<json> events;
  while (!text.empty()) {
    const size_t end = text.find("\n\n"), data = text.find("\ndata: ");
    const json event = json::parse(text.substr(data + 7, end - data - 7));
    EXPECT_EQ(text.substr(0, data), "event: " + event["type"].get<std::string>());
    EXPECT_EQ(event["sequence_number"], events.size());
    events.push_back(event);
    text.remove_prefix(end + 2);
  }
  return events;
}

std::vector<std::string> Types(const std::vector<json>& events) {
  std::vector<std::string> types;
  for (const json& event : events) types.push_back(event["type"].get<std::string>());
  return types;
}

// The items that a client puts together from their events.
json ItemsOf(const std::vector<json>& events) {
  json items = json::array();
  for (const json& event : events) {
    const std::string type = event["type"];
    if (type == "response.output_item.added") {
      EXPECT_EQ(event["output_index"], items.size());
      EXPECT_EQ(event["item"]["status"], "in_progress");
      items.push_back(event["item"]);
    }
    if (!event.contains("output_index")) continue;
    json& item = items.at(event["output_index"].get<size_t>());
    if (event.contains("item_id")) {
      EXPECT_EQ(event["item_id"], item["id"]);
    }
    if (type == "response.content_part.added") item["content"].push_back(event["part"]);
    if (type == "response.output_text.delta") {
      json& part = item["content"][0];
      part["text"] = part["text"].get<std::string>() + event["delta"].get<std::string>();
      for (const json& entry : event["logprobs"]) part["logprobs"].push_back(entry);
    }
    if (type == "response.function_call_arguments.delta")
      item["arguments"] = item["arguments"].get<std::string>() + event["delta"].get<std::string>();
    if (type == "response.output_text.done") {
      EXPECT_EQ(event["text"], item["content"][0]["text"]);
      EXPECT_EQ(event["logprobs"], item["content"][0]["logprobs"]);
    }
    if (type == "response.content_part.done") {
      EXPECT_EQ(event["part"], item["content"][0]);
    }
    if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(event["arguments"], item["arguments"]);
    }
    if (type != "response.output_item.done") continue;
    item["status"] = event["item"]["status"];
    EXPECT_EQ(event["item"], item);
  }
  return items;
}

class ResponsesAnswer : public ::testing::Test {
 protected:
  std::vector<json> Stream(const OpenAiRequest& request, const std::vector<StreamEvent>& events, const BodyError& failure = {}) {
    ResponsesStream stream(&request, kFacts, &tokenizer_);
    std::string text;
    stream.Begin(&text);
    for (const StreamEvent& event : events) stream.Append(event, &text);
    if (const std::unique_ptr<TextSource> end = stream.End(kUsage, failure, &text)) text += TextOf(end.get());
    return Events(text);
  }
  json Whole(const OpenAiRequest& request, const std::vector<StreamEvent>& events) {
    Answer answer{.request = request, .usage = kUsage};
    answer.request.stream = false;
    for (const StreamEvent& event : events) answer.output.Add(event);
    std::vector<Answer> answers;
    answers.push_back(std::move(answer));
    return json::parse(TextOf(ResponseBody(std::move(answers), kFacts, &tokenizer_).get()));
  }
  // `text` as an output, `piece` bytes an event.
  static std::vector<StreamEvent> Pieces(const std::string& text, size_t piece, FinishReason reason) {
    std::vector<StreamEvent> events;
    for (size_t i = 0; i < text.size(); i += piece)
      events.push_back({.index = 0, .token_ids = {0}, .logprobs = {-1}, .text = text.substr(i, piece)});
    events.push_back({.index = 0, .finish_reason = reason, .request_done = true});
    return events;
  }

  FakeTokenizer tokenizer_{{"a", "bc", "\xc3", "\xa9"}};
};

TEST_F(ResponsesAnswer, TextIsOneMessage) {
  const OpenAiRequest request = Request();
  const std::vector<json> events = Stream(request, Pieces("abc", 1, FinishReason::kStop));
  EXPECT_THAT(Types(events), ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                                         "response.content_part.added", "response.output_text.delta", "response.output_text.delta",
                                         "response.output_text.delta", "response.output_text.done", "response.content_part.done",
                                         "response.output_item.done", "response.completed"));
  EXPECT_EQ(events[0]["response"], json::parse(R"({"id": "resp_7", "object": "response", "created_at": 5, "status": "in_progress",
      "background": false, "error": null, "incomplete_details": null, "model": "m", "output": [], "store": false, "usage": null})"));
  const json& response = events.back()["response"];
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["usage"],
            json::parse(R"({"input_tokens": 4, "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1},
      "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 6,
      "shared_prefix": {"tokens": 0, "sharers": 0, "kv_bytes_not_read": 0}})"));
  EXPECT_EQ(response["output"], json::parse(R"([{"id": "msg_7_0", "type": "message", "status": "completed", "role": "assistant",
      "content": [{"type": "output_text", "text": "abc", "annotations": [], "logprobs": []}]}])"));
  EXPECT_EQ(ItemsOf(events), response["output"]);
  EXPECT_EQ(Whole(request, Pieces("abc", 1, FinishReason::kStop))["output"], response["output"]);
}

TEST_F(ResponsesAnswer, AnOutputWithoutTextIsAMessageToo) {
  const std::vector<json> events = Stream(Request(), Pieces("", 1, FinishReason::kStop));
  EXPECT_EQ(ItemsOf(events), events.back()["response"]["output"]);
  EXPECT_EQ(events.back()["response"]["output"][0]["content"][0]["text"], "");
}

TEST_F(ResponsesAnswer, WhatIsCutOffIsIncomplete) {
  const std::vector<json> events = Stream(Request(), Pieces("abc", 2, FinishReason::kLength));
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  EXPECT_EQ(events.back()["response"]["incomplete_details"], json({{"reason", "max_output_tokens"}}));
  EXPECT_EQ(events.back()["response"]["output"][0]["status"], "incomplete");
  const json whole = Whole(Request(), Pieces("abc", 2, FinishReason::kLength));
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["output"], events.back()["response"]["output"]);
}

TEST_F(ResponsesAnswer, CallsAreItemsInTheOrderOfTheOutputHoweverItIsCut) {
  const std::string call_f = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const std::string call_g = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
  const struct {
    std::string text;
    FinishReason reason;
    std::vector<std::string> items;  // type, name or text, status
  } cases[] = {
      {"Let me see.\n" + call_f + "\n" + call_g,
       FinishReason::kStop,
       {"message Let me see. completed", "function_call f{\"a\": 1} completed", "function_call g{} completed"}},
      {call_f, FinishReason::kStop, {"function_call f{\"a\": 1} completed"}},
      {call_f + " and then", FinishReason::kStop, {"function_call f{\"a\": 1} completed", "message  and then completed"}},
      {call_f.substr(0, 45), FinishReason::kLength, {"function_call f{\"a\":  incomplete"}},
      {call_f, FinishReason::kLength, {"function_call f{\"a\": 1} completed"}},
      {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": ]", FinishReason::kStop, {}},
      {"no <tool_call> at all", FinishReason::kStop, {"message no <tool_call> at all completed"}},
  };
  const OpenAiRequest request = Request(/*with_tools=*/true);
  for (const auto& [text, reason, items] : cases) {
    const json whole = Whole(request, Pieces(text, text.size(), reason));
    std::vector<std::string> written;
    for (const json& item : whole["output"]) {
      const bool call = item["type"] == "function_call";
      written.push_back(item["type"].get<std::string>() + " " +
                        (call ? item["name"].get<std::string>() + item["arguments"].get<std::string>()
                              : item["content"][0]["text"].get<std::string>()) +
                        " " + item["status"].get<std::string>());
    }
    if (!items.empty()) {
      EXPECT_EQ(written, items) << text;
    }
    for (const size_t piece : {1, 2, 3, 7, 1000}) {
      const std::vector<json> events = Stream(request, Pieces(text, piece, reason));
      EXPECT_EQ(events.back()["response"]["output"], whole["output"]) << text << " by " << piece;
      EXPECT_EQ(ItemsOf(events), whole["output"]) << text << " by " << piece;
    }
  }
}

TEST_F(ResponsesAnswer, CallsHaveTheNamesThatTheirResultsGive) {
  const std::string text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  const json item = Whole(Request(/*with_tools=*/true), Pieces(text, 4, FinishReason::kStop))["output"][0];
  EXPECT_EQ(item["call_id"], ToolCallId(ToolCallStyle::kHermes, "7", 0, 0));
  EXPECT_EQ(item["id"], "fc_7_0");
}

TEST_F(ResponsesAnswer, LogprobsComeWithTheText) {
  OpenAiRequest request = Request();
  request.logprobs = true;
  request.request.top_logprobs = 1;
  const std::vector<StreamEvent> output = {
      {.index = 0, .token_ids = {2}, .logprobs = {-1}, .top_logprobs = {{{.token = 0, .logprob = -0.5}}}},  // half a character
      {.index = 0,
       .token_ids = {3, 0},
       .logprobs = {-2, -3},
       .top_logprobs = {{}, {}},
       .text = "\xc3\xa9"
               "a"},
      {.index = 0, .finish_reason = FinishReason::kStop, .request_done = true}};
  const std::vector<json> events = Stream(request, output);
  const json items = events.back()["response"]["output"];
  const json& logprobs = items[0]["content"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 3u);
  EXPECT_EQ(logprobs[0], json::parse(R"({"token": "\ufffd", "logprob": -1.0, "bytes": [195],
                                         "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}]})"));
  EXPECT_EQ(logprobs[2]["logprob"], -3.0);
  EXPECT_EQ(ItemsOf(events), items);
  EXPECT_EQ(Whole(request, output)["output"], items);
}

TEST_F(ResponsesAnswer, ALongEndIsMadeWhileItIsTaken) {
  const OpenAiRequest request = Request();
  ResponsesStream stream(&request, kFacts, &tokenizer_);
  const std::string text(100'000, 'x');
  std::string begin, end;
  stream.Begin(&begin);
  stream.Append({.index = 0, .token_ids = {0}, .logprobs = {-1}, .text = text}, &begin);
  stream.Append({.index = 0, .finish_reason = FinishReason::kStop, .request_done = true}, &begin);
  const std::unique_ptr<TextSource> source = stream.End(kUsage, {}, &end);
  ASSERT_TRUE(source);
  EXPECT_EQ(end, "");
  EXPECT_GT(source->held_bytes(), text.size());
  EXPECT_EQ(Events(begin + TextOf(source.get())).back()["response"]["output"][0]["content"][0]["text"], text);
}

TEST_F(ResponsesAnswer, AFailureIsAnEventOfItsOwn) {
  const BodyError failure = {InvalidArgument("text.format: too slow"), "text.format"};
  const std::vector<json> events = Stream(Request(), {{.index = 0, .token_ids = {0}, .logprobs = {-1}, .text = "a"}}, failure);
  EXPECT_EQ(events.back()["type"], "response.failed");
  const json& response = events.back()["response"];
  EXPECT_EQ(response["status"], "failed");
  EXPECT_EQ(response["error"],
            json::parse(R"({"code": "invalid_prompt", "message": "text.format: too slow", "param": "text.format"})"));
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  const std::vector<json> unbegun = Stream(Request(), {}, {.status = Internal("the device is gone")});
  EXPECT_EQ(unbegun.back()["response"]["error"]["code"], "server_error");
  EXPECT_EQ(unbegun.back()["response"]["output"], json::array());
}

}  // namespace
}  // namespace coppice::openai
