// Streamed answers: the objects that events become, for completions and chats, with and without what was asked for besides text.
#include "openai/response_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/testing/fake_tokenizer.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using ::testing::SizeIs;

const ResponseFacts kFacts = {.id = "7", .created = 5, .model = "m"};

// The objects of `frames`, which must be server-sent events without anything else; [DONE] is a string.
std::vector<json> Objects(std::string_view frames) {
  std::vector<json> objects;
  while (!frames.empty()) {
    EXPECT_TRUE(frames.starts_with("data: ")) << frames;
    const size_t end = frames.find("\n\n");
    const std::string_view data = frames.substr(6, end - 6);
    objects.push_back(data == "[DONE]" ? json("[DONE]") : json::parse(data));
    frames.remove_prefix(end + 2);
  }
  return objects;
}

class ResponseStreamTest : public ::testing::Test {
 protected:
  std::vector<json> Append(ResponseStream& stream, const StreamEvent& event) {
    if (event.index < 0) {
      const std::unique_ptr<TextSource> echo = stream.Echo(event);
      return Objects(echo ? TextOf(echo.get()) : "");
    }
    std::string frames;
    stream.Append(event, &frames);
    return Objects(frames);
  }

  FakeTokenizer tokenizer_{{"a", "bc", "\xc3", "\xa9", "\n\"x"}};
};

TEST_F(ResponseStreamTest, BeamScoresComeWithTheLastEventOfEachChoice) {
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChatCompletions}) {
    const OpenAiRequest request{.endpoint = endpoint, .stream = true};
    ResponseStream stream(&request, kFacts, /*first_choice=*/0, &tokenizer_);
    for (const json& object : Append(stream, {.index = 0, .token_ids = {0}, .logprobs = {-1}, .text = "a"}))
      EXPECT_FALSE(object["choices"][0].contains("beam_score"));
    const std::vector<json> last = Append(stream, {.index = 0, .finish_reason = FinishReason::kLength, .beam_score = -1.5f});
    ASSERT_THAT(last, SizeIs(1));
    EXPECT_EQ(last[0]["choices"][0]["beam_score"], -1.5);
  }
}

TEST_F(ResponseStreamTest, CompletionWithUsage) {
  const OpenAiRequest request{.choices = 2, .stream = true, .include_usage = true};
  ResponseStream stream(&request, kFacts, /*first_choice=*/3, &tokenizer_);
  const std::vector<json> text = Append(stream, {.index = 1, .token_ids = {4}, .logprobs = {-1}, .text = "\n\"x"});
  ASSERT_THAT(text, SizeIs(1));
  EXPECT_EQ(text[0], json::parse(R"({"id": "cmpl-7", "object": "text_completion", "created": 5, "model": "m", "usage": null,
      "choices": [{"index": 4, "text": "\n\"x", "logprobs": null, "finish_reason": null}]})"));
  EXPECT_THAT(Append(stream, {.index = 0, .token_ids = {2}, .logprobs = {-1}}), SizeIs(0));  // half a character
  const std::vector<json> last = Append(stream, {.index = 0, .finish_reason = FinishReason::kLength});
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_EQ(last[0]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(last[0]["choices"][0]["index"], 3);

  std::string end;
  EXPECT_FALSE(
      stream.End({.prompt = 4, .cached = 3, .completion = 2, .shared_reads = {.kv_bytes_not_read = 640, .tokens = 5, .sharers = 2}},
                 {}, &end));
  const std::vector<json> objects = Objects(end);
  ASSERT_THAT(objects, SizeIs(2));
  EXPECT_EQ(objects[0]["choices"], json::array());
  EXPECT_EQ(objects[0]["usage"], json::parse(R"({"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6,
                                                 "prompt_tokens_details": {"cached_tokens": 3},
      "shared_prefix": {"tokens": 5, "sharers": 2, "kv_bytes_not_read": 640}})"));
  EXPECT_EQ(objects[1], "[DONE]");
}

TEST_F(ResponseStreamTest, ChatBeginsWithTheRole) {
  const OpenAiRequest request{.endpoint = Endpoint::kChatCompletions, .stream = true};
  ResponseStream stream(&request, kFacts, 0, &tokenizer_);
  const std::vector<json> first = Append(stream, {.index = 0, .token_ids = {0}, .logprobs = {-1}, .text = "a"});
  ASSERT_THAT(first, SizeIs(2));
  EXPECT_EQ(first[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(first[0]["choices"][0]["delta"], json::parse(R"({"role": "assistant", "content": ""})"));
  EXPECT_EQ(first[1]["choices"][0]["delta"], json::parse(R"({"content": "a"})"));
  EXPECT_FALSE(first[1].contains("usage"));
  const std::vector<json> last =
      Append(stream, {.index = 0, .token_ids = {1}, .logprobs = {-1}, .text = "bc", .finish_reason = FinishReason::kStop});
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_EQ(last[0]["choices"][0]["finish_reason"], "stop");
  std::string end;
  EXPECT_FALSE(stream.End({}, {}, &end));
  EXPECT_EQ(end, "data: [DONE]\n\n");
}

TEST_F(ResponseStreamTest, ChatLogprobsComeWithTokensThatHaveNoTextYet) {
  OpenAiRequest request{.endpoint = Endpoint::kChatCompletions, .logprobs = true, .stream = true};
  request.request.top_logprobs = 1;
  ResponseStream stream(&request, kFacts, 0, &tokenizer_);
  const StreamEvent half = {.index = 0, .token_ids = {2}, .logprobs = {-0.5f}, .top_logprobs = {{{.token = 0, .logprob = -0.25f}}}};
  const std::vector<json> objects = Append(stream, half);
  ASSERT_THAT(objects, SizeIs(2));
  const json& token = objects[1]["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(token["bytes"], json({0xc3}));
  EXPECT_EQ(token["logprob"], -0.5);
  EXPECT_EQ(token["top_logprobs"][0]["token"], "a");
  EXPECT_EQ(objects[1]["choices"][0]["delta"], json::object());
}

TEST_F(ResponseStreamTest, OffsetsOfACompletionGoOnAfterItsEcho) {
  OpenAiRequest request{.choices = 2, .logprobs = true, .stream = true, .return_token_ids = true};
  request.request.echo = true;
  request.request.top_logprobs = 1;
  ResponseStream stream(&request, kFacts, 0, &tokenizer_);
  const std::vector<json> prompt = Append(stream, {.index = -1,
                                                   .token_ids = {1, 0},
                                                   .text = "bca",
                                                   .prompt_logprobs = {std::nullopt, -2.0f},
                                                   .prompt_top_logprobs = {{}, {{.token = 1, .logprob = -0.5f}}}});
  ASSERT_THAT(prompt, SizeIs(2));  // a choice each
  EXPECT_EQ(prompt[1]["choices"][0]["index"], 1);
  EXPECT_EQ(prompt[1]["choices"][0]["text"], "bca");
  EXPECT_EQ(prompt[1]["choices"][0]["token_ids"], json({1, 0}));
  EXPECT_EQ(prompt[1]["choices"][0]["logprobs"]["token_logprobs"], json::parse("[null, -2.0]"));
  EXPECT_EQ(prompt[1]["choices"][0]["logprobs"]["top_logprobs"], json::parse(R"([null, {"bc": -0.5}])"));
  for (const int64_t offset : {3, 5}) {
    const std::vector<json> next = Append(stream, {.index = 1, .token_ids = {1}, .logprobs = {-1}, .text = "bc"});
    EXPECT_EQ(next[0]["choices"][0]["logprobs"]["text_offset"], json({offset}));
    EXPECT_EQ(next[0]["choices"][0]["logprobs"]["top_logprobs"], json({nullptr}));
  }
}

TEST_F(ResponseStreamTest, TheFirstObjectOfEachChoiceHasThePromptsIds) {
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChatCompletions}) {
    const bool chat = endpoint == Endpoint::kChatCompletions;
    for (const bool echo : {false, true}) {
      if (chat && echo) continue;
      OpenAiRequest request{.endpoint = endpoint, .choices = 3, .stream = true, .include_usage = true, .return_token_ids = true};
      request.request.echo = echo;
      request.prompt_ids = {1, 0, 4};
      ResponseStream stream(&request, kFacts, /*first_choice=*/2, &tokenizer_);
      std::string begin;
      std::unique_ptr<TextSource> first = stream.Begin(&begin);
      EXPECT_EQ(begin, "");
      ASSERT_EQ(first == nullptr, echo);
      if (echo) first = stream.Echo({.index = -1, .token_ids = {1, 0, 4}, .text = "bca\n\"x"});
      EXPECT_GT(first->held_bytes(), 3 * sizeof(int32_t));
      const std::vector<json> objects = Objects(TextOf(first.get()));
      ASSERT_THAT(objects, SizeIs(3));
      for (int32_t i = 0; i < 3; ++i) {
        const json& choice = objects[i]["choices"][0];
        EXPECT_EQ(choice["index"], 2 + i);
        EXPECT_EQ((chat ? objects[i] : choice)["prompt_token_ids"], json({1, 0, 4}));
        EXPECT_EQ(choice["finish_reason"], nullptr);
        EXPECT_EQ(objects[i]["usage"], nullptr);
        if (chat) {
          EXPECT_EQ(choice["delta"], json::parse(R"({"role": "assistant", "content": ""})"));
        } else {
          EXPECT_EQ(choice["text"], echo ? "bca\n\"x" : "");
        }
      }
      const std::vector<json> next = Append(stream, {.index = 1, .token_ids = {0}, .logprobs = {-1}, .text = "a"});
      ASSERT_THAT(next, SizeIs(1));  // a role is said once
      EXPECT_FALSE((chat ? next[0] : next[0]["choices"][0]).contains("prompt_token_ids"));
    }
  }
  OpenAiRequest request{.stream = true, .return_token_ids = true};  // a fork
  std::string begin;
  EXPECT_FALSE(ResponseStream(&request, kFacts, 0, &tokenizer_).Begin(&begin));
}

TEST_F(ResponseStreamTest, WithoutATokenizerThereAreTokenIds) {
  const OpenAiRequest request{.stream = true};
  ResponseStream stream(&request, kFacts, 0, nullptr);
  const std::vector<json> objects = Append(stream, {.index = 0, .token_ids = {9}, .logprobs = {-1}});
  ASSERT_THAT(objects, SizeIs(1));
  EXPECT_EQ(objects[0]["choices"][0]["token_ids"], json({9}));
}

TEST_F(ResponseStreamTest, AFailureIsItsLastObject) {
  const OpenAiRequest request{.stream = true};
  ResponseStream stream(&request, kFacts, 0, &tokenizer_);
  std::string end;
  EXPECT_FALSE(stream.End({}, {.status = Internal("the device is gone\n\n")}, &end));
  const std::vector<json> objects = Objects(end);
  ASSERT_THAT(objects, SizeIs(1));
  EXPECT_EQ(objects[0]["error"]["message"], "the device is gone\n\n");
  EXPECT_EQ(objects[0]["error"]["type"], "server_error");
}

}  // namespace
}  // namespace coppice::openai
