// Requests that fill in the middle of a text: what is taken, refused, and put to the model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "openai/request.h"
#include "tests/support/byte_tokenizer.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kContext = 32, kVocabulary = 256;

class FimRequestsTest : public ::testing::Test {
 protected:
  std::optional<std::vector<OpenAiRequest>> Parse(const char* body) {
    error_ = {};
    return parser_.ParseList(Endpoint::kCompletions, json::parse(body), &error_);
  }
  std::string RefusedParam(const char* body) {
    EXPECT_FALSE(Parse(body)) << body;
    return error_.param;
  }

  const ByteTokenizer tokenizer_{
      Tokenizer::Info{.bos_id = 9, .add_bos = true, .fim = {.prefix = 1, .suffix = 2, .middle = 3, .ends = {4, 5}}}};
  const OpenAiRequestParser parser_{&tokenizer_, kContext, OkStatus(), kVocabulary, {.unknown_fields = UnknownFields::kRefuse}};
  BodyError error_;
};

TEST_F(FimRequestsTest, ASuffixMakesAGapThatTheAnswerFills) {
  const auto list = Parse(R"({"prompt": "ab", "suffix": "c", "stop_token_ids": [7], "max_tokens": 4})");
  ASSERT_TRUE(list) << error_.status.message();
  EXPECT_THAT(*parser_.Encode(list->front()), ElementsAre(9, 1, 'a', 'b', 2, 'c', 3));
  EXPECT_THAT(list->front().request.stop_token_ids, ElementsAre(7, 4, 5));
  const auto none = Parse(R"({"prompt": "ab", "suffix": ""})");
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->front().fim);
  EXPECT_THAT(none->front().request.stop_token_ids, IsEmpty());
  EXPECT_THAT(Parse(R"({"prompt": "ab", "suffix": "c", "ignore_eos": true})")->front().request.stop_token_ids, IsEmpty());
}

TEST_F(FimRequestsTest, ASuffixIsThatOfEachPrompt) {
  const auto list = Parse(R"({"prompt": ["a", "b"], "suffix": "c"})");
  ASSERT_TRUE(list) << error_.status.message();
  EXPECT_THAT(*parser_.Encode((*list)[0]), ElementsAre(9, 1, 'a', 2, 'c', 3));
  EXPECT_THAT(*parser_.Encode((*list)[1]), ElementsAre(9, 1, 'b', 2, 'c', 3));
  json many = {{"prompt", json::array()}, {"suffix", std::string(size_t{1} << 14, 'x')}};
  for (int i = 0; i < 1025; ++i) many["prompt"].push_back("a");
  EXPECT_EQ(RefusedParam(many.dump().c_str()), "suffix");
  EXPECT_THAT(error_.status.message(), HasSubstr("behind each of 1025 prompts"));
}

TEST_F(FimRequestsTest, WhatASuffixDoesNotGoWithIsRefused) {
  EXPECT_EQ(RefusedParam(R"({"prompt": [1, 2], "suffix": "c"})"), "suffix");
  EXPECT_EQ(RefusedParam(R"({"prompt": ["a", [1]], "suffix": "c"})"), "suffix");
  EXPECT_EQ(RefusedParam(R"({"prompt": "a", "suffix": "c", "echo": true})"), "echo");
  EXPECT_EQ(RefusedParam(R"({"prompt": "a", "suffix": 3})"), "suffix");
  const auto prefix = std::make_shared<NamedPrefix>();
  prefix->text = "p";
  EXPECT_FALSE(parser_.Parse(Endpoint::kCompletions, {{"prompt", "a"}, {"suffix", "c"}, {"prefix", "p"}}, &error_,
                             [&](const std::string&) { return prefix; }));
  EXPECT_EQ(error_.param, "prefix");
}

TEST_F(FimRequestsTest, TheContextBoundsAllOfTheText) {
  const std::string half(kContext / 2, 'x');
  const auto fits = Parse(json{{"prompt", half}, {"suffix", half}}.dump().c_str());
  EXPECT_TRUE(parser_.Encode(fits->front()).ok());
  const auto list = Parse(json{{"prompt", half}, {"suffix", half + "x"}}.dump().c_str());
  EXPECT_THAT(parser_.Encode(list->front()).status().message(), HasSubstr("the prompt with its suffix has 33 bytes"));
}

TEST_F(FimRequestsTest, AModelWithoutTheTokensSaysSo) {
  const ByteTokenizer plain{""};
  const OpenAiRequestParser parser(&plain, kContext);
  EXPECT_FALSE(parser.Parse(Endpoint::kCompletions, {{"prompt", "a"}, {"suffix", "c"}}, &error_));
  EXPECT_EQ(error_.param, "suffix");
  EXPECT_THAT(error_.status.message(), HasSubstr("no fill-in-the-middle tokens"));
  EXPECT_TRUE(parser.Parse(Endpoint::kCompletions, {{"prompt", "a"}, {"suffix", ""}}, &error_));
}

}  // namespace
}  // namespace coppice::openai
